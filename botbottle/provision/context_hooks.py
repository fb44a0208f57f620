"""Session context for agents that cannot be pushed to: a hook at the start of each session fetches it.

Pure. The fetched text only informs the model; a bottle that changes its hooks deceives only itself.
"""

from __future__ import annotations

import json
from typing import Any, Final

from botbottle.core.plan_types import AGENT_PORT_INSIDE, HOME_INSIDE, BackendError, File

CLAUDE_SETTINGS: Final = f"{HOME_INSIDE}/.claude/settings.json"
CLAUDE_SCRIPT: Final = f"{HOME_INSIDE}/.claude/bot-bottle-context.py"
CLAUDE_COMMAND: Final = f"python3 -I -S {CLAUDE_SCRIPT}"
OPENCODE_PLUGIN: Final = f"{HOME_INSIDE}/.config/opencode/plugins/bot-bottle-context.js"
HOOK_SECONDS: Final = 15  # more than the script's own five seconds, less than a person notices

_SCRIPT: Final = f'''\
"""Prints what bot-bottle tells this bottle when a session begins. Rewritten at each start."""

import http.client
import json
import re
import sys

PATH = "/session-context?format=text"


def session() -> str:
    try:
        name = json.loads(sys.stdin.buffer.read(1_000_000))["session_id"]
        return name if re.fullmatch(r"[A-Za-z0-9._:@/=-]{{1,128}}", name) else ""
    except (KeyError, TypeError, ValueError):
        return ""


def fetched(path: str) -> bytes:
    server = http.client.HTTPConnection("127.0.0.1", {AGENT_PORT_INSIDE}, timeout=5)
    server.request("GET", path)
    answer = server.getresponse()
    if answer.status != 200:
        raise OSError("it answered %d" % answer.status)
    return answer.read(100_000)


try:
    name = session()
    text = fetched(PATH + "&session_id=" + name if name else PATH)
except (OSError, http.client.HTTPException) as problem:
    text = (
        "bot-bottle: the session context cannot be had now (%s). Call list-egress-routes to see what this "
        "bottle may reach.\\n" % problem
    ).encode("utf-8", "replace")
sys.stdout.buffer.write(text)
'''

_PLUGIN: Final = f"""\
// Adds what bot-bottle tells this bottle to the system prompt of each session. Rewritten at each start.
const ADDRESS = "http://127.0.0.1:{AGENT_PORT_INSIDE}/session-context?format=text"
const MOST = 100
const blocks = new Map() // by session, so that the prompt stays the same while one lasts

async function fetched(session) {{
  const named = /^[A-Za-z0-9._:@/=-]{{1,128}}$/.test(session) ? `&session_id=${{session}}` : ""
  const answer = await fetch(ADDRESS + named, {{ signal: AbortSignal.timeout(5000) }})
  if (!answer.ok) throw new Error(`it answered ${{answer.status}}`)
  return await answer.text()
}}

async function block(session) {{
  if (blocks.has(session)) return blocks.get(session)
  try {{
    const text = await fetched(session)
    if (blocks.size >= MOST) blocks.delete(blocks.keys().next().value)
    blocks.set(session, text)
    return text
  }} catch (problem) {{
    return (
      `bot-bottle: the session context cannot be had now (${{problem.message}}). ` +
      "Call list-egress-routes to see what this bottle may reach."
    )
  }}
}}

export const BotBottleContext = async () => ({{
  "experimental.chat.system.transform": async (input, output) => {{
    output.system.push(await block(input.sessionID ?? ""))
  }},
  event: async ({{ event }}) => {{
    if (event.type === "session.compacted") blocks.delete(event.properties.sessionID)
  }},
}})
"""


def files(kind: str) -> tuple[File, ...]:
    """The hook's files for a kind of agent, without the settings to merge; none where there is no hook."""
    if kind == "claude":
        return (File(CLAUDE_SCRIPT, _SCRIPT),)
    if kind == "opencode":
        return (File(OPENCODE_PLUGIN, _PLUGIN),)
    return ()


def claude_settings(existing: str | None) -> str:
    """Add our start hook to Claude Code's settings, once however often this is called.

    Raises BackendError when the settings cannot be parsed, since adding to them would lose their content.
    """
    settings = _object(_parsed(existing), "the settings")
    hooks = _object(settings.setdefault("hooks", {}), "hooks")
    groups = hooks.setdefault("SessionStart", [])
    if not isinstance(groups, list):
        raise _refusal("hooks.SessionStart must be a list")
    # Without a matcher it runs at every start: of a new, resumed, cleared or compacted session.
    own = {"hooks": [{"type": "command", "command": CLAUDE_COMMAND, "timeout": HOOK_SECONDS}]}
    hooks["SessionStart"] = [group for group in groups if not _is_ours(group)] + [own]
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _is_ours(group: object) -> bool:
    entries = group.get("hooks") if isinstance(group, dict) else None
    return isinstance(entries, list) and [
        entry.get("command") for entry in entries if isinstance(entry, dict)
    ] == [CLAUDE_COMMAND]


def _parsed(existing: str | None) -> object:
    text = (existing or "").removeprefix("\ufeff")
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise _refusal(f"it is not plain JSON ({error})") from error


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refusal(f"{name} must be an object in braces")
    return value


def _refusal(what: str) -> BackendError:
    return BackendError(f"{CLAUDE_SETTINGS}: {what}. Put it right, or set 'context: false' in the manifest.")
