"""The agent plane's MCP endpoint: everything that arrives here was written by an agent and is hostile."""
