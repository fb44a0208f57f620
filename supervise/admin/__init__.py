"""The Django admin's pages for proposals, access, MCP servers and webhooks. Django finds them here."""

from supervise.admin import access, mcp_servers, proposals, webhooks

__all__ = ["access", "mcp_servers", "proposals", "webhooks"]
