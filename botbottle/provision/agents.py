"""What each kind of agent finds in its home: the MCP entry, quiet defaults, and a note about its bottle.

Pure. Existing settings stay; a configuration that cannot be parsed is refused, never overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from botbottle.core.plan_types import HOME_INSIDE, WORKSPACE_INSIDE, BackendError, File
from botbottle.provision import codex_config
from botbottle.provision.notes import merged_note

KINDS: Final = ("claude", "codex", "gemini", "opencode", "none")
SERVER: Final = "supervise"
TOOL_SECONDS: Final = 600  # the server answers 'pending' long before; this must be the longer of the two

NOTES: Final = {
    "claude": f"{HOME_INSIDE}/.claude/CLAUDE.md",
    "codex": f"{HOME_INSIDE}/.codex/AGENTS.md",
    "gemini": f"{HOME_INSIDE}/.gemini/GEMINI.md",
    "opencode": f"{HOME_INSIDE}/.config/opencode/AGENTS.md",
}
CLAUDE, CLAUDE_SETTINGS = f"{HOME_INSIDE}/.claude.json", f"{HOME_INSIDE}/.claude/settings.json"
CODEX = f"{HOME_INSIDE}/.codex/config.toml"
GEMINI, GEMINI_TRUST = (f"{HOME_INSIDE}/.gemini/{name}.json" for name in ("settings", "trustedFolders"))
OPENCODE = f"{HOME_INSIDE}/.config/opencode/opencode.json"

Existing = Callable[[str], str | None]
Urls = Mapping[str, str]  # of MCP servers, by name


class BadConfiguration(BackendError):
    """An agent's configuration cannot be merged; the message names the file and says what to do."""


def command(kind: str) -> tuple[str, ...]:
    """The command for a manifest without one; empty for `none`."""
    return () if kind == "none" else (kind,)


def paths() -> tuple[str, ...]:
    """Every file that may be read for merging."""
    return (CLAUDE, CLAUDE_SETTINGS, CODEX, GEMINI, GEMINI_TRUST, OPENCODE, *NOTES.values())


def files(
    kind: str, *, mcp_url: str, existing: Existing, supervise: bool, servers: Sequence[str] = ()
) -> tuple[File, ...]:
    """The files for a kind of agent. `existing` returns the text at a path, or None. Raises BadConfiguration.

    `servers` are the names of managed MCP servers; each gets an entry beside ours.
    """
    if kind == "none":
        return ()
    make = {"claude": _claude, "codex": _codex, "gemini": _gemini, "opencode": _opencode}[kind]
    urls = {SERVER: mcp_url, **{name: f"{mcp_url}/servers/{name}" for name in servers}} if supervise else {}
    made = make(urls, existing)
    note = merged_note(existing(NOTES[kind]), supervise=supervise)
    return (*(File(path, text, 0o600) for path, text in made.items()), File(NOTES[kind], note))


def _claude(urls: Urls, existing: Existing) -> dict[str, str]:
    state = _Json(CLAUDE, existing)
    state.default(True, "hasCompletedOnboarding")
    state.default(True, "projects", WORKSPACE_INSIDE, "hasTrustDialogAccepted")
    if not urls:
        return {CLAUDE: state.text()}
    settings = _Json(CLAUDE_SETTINGS, existing)
    for name, url in urls.items():
        state.set({"type": "http", "url": url, "timeout": TOOL_SECONDS * 1000}, "mcpServers", name)
        settings.include(f"mcp__{name}", "permissions", "allow")  # asking is safe: an operator answers
    return {CLAUDE: state.text(), CLAUDE_SETTINGS: settings.text()}


def _codex(urls: Urls, existing: Existing) -> dict[str, str]:
    text = existing(CODEX)
    try:
        for name, url in (urls or {SERVER: ""}).items():
            text = codex_config.merged(text, server=name, url=url, seconds=TOOL_SECONDS)
        return {CODEX: text or ""}
    except ValueError as error:
        raise BadConfiguration(f"{CODEX} {error}") from error


def _gemini(urls: Urls, existing: Existing) -> dict[str, str]:
    settings, trusted = _Json(GEMINI, existing), _Json(GEMINI_TRUST, existing)
    settings.default(False, "privacy", "usageStatisticsEnabled")
    settings.default(False, "general", "enableAutoUpdate")
    trusted.default("TRUST_FOLDER", WORKSPACE_INSIDE)
    for name, url in urls.items():
        settings.set({"httpUrl": url, "timeout": TOOL_SECONDS * 1000, "trust": True}, "mcpServers", name)
        if settings.has("mcp", "allowed"):  # a list without our server would hide its tools
            settings.include(name, "mcp", "allowed")
    return {GEMINI: settings.text(), GEMINI_TRUST: trusted.text()}


def _opencode(urls: Urls, existing: Existing) -> dict[str, str]:
    settings = _Json(
        OPENCODE,
        existing,
        comments="rename it to opencode.jsonc: OpenCode reads both, and that one stays as it is",
    )
    settings.default(False, "autoupdate")
    for name, url in urls.items():
        server = {"type": "remote", "url": url, "enabled": True, "oauth": False}
        settings.set({**server, "timeout": TOOL_SECONDS * 1000}, "mcp", name)
    return {OPENCODE: settings.text()}


class _Json:
    """A JSON object to add to; unknown keys stay, in their order."""

    def __init__(self, path: str, existing: Existing, *, comments: str = "take comments out of it") -> None:
        self._path = path
        text = (existing(path) or "").removeprefix("\ufeff")
        try:
            self._root = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError) as error:
            raise BadConfiguration(
                f"{path} is not plain JSON ({error}), and adding to it would lose what it says."
                f" Put it right, or {comments}."
            ) from error
        self._object(self._root)

    def has(self, *keys: str) -> bool:
        place = self._root
        for key in keys:
            if not isinstance(place, dict) or key not in place:
                return False
            place = place[key]
        return True

    def set(self, value: object, *keys: str) -> None:
        self._place(keys)[keys[-1]] = value

    def default(self, value: object, *keys: str) -> None:
        self._place(keys).setdefault(keys[-1], value)

    def include(self, value: str, *keys: str) -> None:
        entries = self._place(keys).setdefault(keys[-1], [])
        if not isinstance(entries, list):
            raise BadConfiguration(f"{self._path}: {'.'.join(keys)} must be a list. Put it right.")
        if value not in entries:
            entries.append(value)

    def text(self) -> str:
        return json.dumps(self._root, indent=2) + "\n"

    def _place(self, keys: tuple[str, ...]) -> dict[str, Any]:
        place = self._root
        for depth, key in enumerate(keys[:-1]):
            place = self._object(place.setdefault(key, {}), *keys[: depth + 1])
        return self._object(place)

    def _object(self, value: object, *keys: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            where = f": {'.'.join(keys)}" if keys else ""
            raise BadConfiguration(f"{self._path}{where} must be an object in braces. Put it right.")
        return value
