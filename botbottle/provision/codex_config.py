"""Merges our table into Codex's config.toml as text; everything else stays byte for byte. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from botbottle.core.plan_types import WORKSPACE_INSIDE

# Only for a new file: the owner of an existing one has chosen already.
_FRESH = f"""\
# The bottle is the sandbox. Codex's own would hide the proxy from the commands that it runs.
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[projects."{WORKSPACE_INSIDE}"]
trust_level = "trusted"
"""
_HEADER = re.compile(r"\s*\[")


def merged(existing: str | None, *, server: str, url: str, seconds: int) -> str:
    """The text with our table, or without it if there is no URL.

    Raises ValueError with the end of a sentence about the file.
    """
    text = existing if existing and existing.strip() else _FRESH
    before = _parsed(text)
    if not url:
        return text
    table = {"url": url, "tool_timeout_sec": seconds}
    own = f"[mcp_servers.{server}]\n" + "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in table.items()
    )
    rest = _without_table(text, server)
    gap = "" if not rest or rest.endswith("\n\n") else "\n" if rest.endswith("\n") else "\n\n"
    result = rest + gap + own
    _check(before, result, server, table)
    return result


def _without_table(text: str, server: str) -> str:
    """The text without the lines of our table and its subtables."""
    own = re.compile(rf"""\s*\[\s*mcp_servers\s*\.\s*["']?{re.escape(server)}["']?\s*(\.[^\]]*)?\]""")
    rest: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        if _HEADER.match(line):
            inside = own.match(line) is not None
        if not inside:
            rest.append(line)
    return "".join(rest)


def _check(before: dict[str, Any], result: str, server: str, table: dict[str, Any]) -> None:
    """Raises ValueError if anything but our table differs: a header may be inside a string."""
    servers = before.get("mcp_servers", {})
    wanted = before | {"mcp_servers": {**servers, server: table}} if isinstance(servers, dict) else None
    try:
        found = tomllib.loads(result)
    except tomllib.TOMLDecodeError:
        found = {}
    if found != wanted:
        raise ValueError(
            f"has its mcp_servers in a form that cannot be added to. Write them as [mcp_servers.NAME] tables,"
            f" without {server!r}."
        )


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is not valid TOML ({error}). Put it right: it is not overwritten.") from error
