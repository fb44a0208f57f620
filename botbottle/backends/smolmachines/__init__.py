"""Bottles as virtual machines."""
