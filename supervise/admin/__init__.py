"""The admin pages of bottles, proposals, access, MCP servers and webhooks. Django finds them here."""

from supervise.admin import access, bottles, mcp_servers, proposals, webhooks

__all__ = ["access", "bottles", "mcp_servers", "proposals", "webhooks"]
