"""What the Django admin shows of proposals, access, MCP servers and webhooks. Django finds the pages here."""

from supervise.admin import access, mcp_servers, proposals, webhooks

__all__ = ["access", "mcp_servers", "proposals", "webhooks"]
