"""The base of the management commands, and how they print."""
