"""Bottles by bubblewrap on this host."""
