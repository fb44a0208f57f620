"""The agent plane's MCP endpoint. Everything that arrives here was written by an agent and is hostile."""
