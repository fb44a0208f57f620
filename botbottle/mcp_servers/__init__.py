"""Managed MCP servers: stdio programs inside a bottle, watched by a process on the host. No Django."""
