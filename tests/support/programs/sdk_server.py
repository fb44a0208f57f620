"""A stdio MCP server with the official Python SDK."""

import os
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("with-sdk")


@server.tool()
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@server.tool()
def where() -> str:
    """Which process this is, and in which directory."""
    return f"{os.getpid()} {os.uname().nodename} {Path.cwd()}"


server.run("stdio")
