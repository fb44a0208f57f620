"""Agents ask, operators decide."""
