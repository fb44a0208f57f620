"""The agent plane's way to MCP servers inside bottles."""
