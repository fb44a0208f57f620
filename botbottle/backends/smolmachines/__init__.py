"""Bottles as virtual machines of their own."""
