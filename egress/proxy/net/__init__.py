"""Connections, the memory they may use, and how they are opened, kept and moved within the kernel."""
