"""The note that tells an agent where it is and what to do after a refusal. Pure."""

from __future__ import annotations

from typing import Final

from botbottle.core.plan_types import CONFIG_INSIDE, WORKSPACE_INSIDE

BEGIN: Final = "<!-- bot-bottle: begin, written at each start -->"
END: Final = "<!-- bot-bottle: end -->"

_ALONE: Final = f"""\
# You are in a bottle

This sandbox has no network of its own. The only way out is an HTTP proxy that denies by default; the
proxy variables and certificates are set, so use the usual tools as they are. Work in `{WORKSPACE_INSIDE}`.
A 403 from the proxy is a decision, not a fault: do not retry it in a loop, do not look for a way around it.
What you may reach now: `{CONFIG_INSIDE}/routes.yaml` and `allowlist` (live).
"""

_ASKING: Final = f"""
When something is refused, ask with the tools of the MCP server `supervise`; a person decides while the
call waits:

- The proxy answered 403: read its JSON. Call the tool that `ask.tool` names with exactly `ask.arguments`,
  and say in `justification` what you need it for. It is `egress-block`, or `pipelock-block` when the gate
  refused the host.
- A program or library is missing: `capability-block`, with the whole new Dockerfile (now:
  `{CONFIG_INSIDE}/Dockerfile`).
- `list-egress-routes` shows what is open. It needs no approval.

`approved` or `modified`: retry once, it is live. `rejected`: read the notes, do without it or ask for less.
`pending`: go on with other work, and ask `check-proposal` later.
"""


def note(*, supervise: bool) -> str:
    return _ALONE + _ASKING if supervise else _ALONE


def merged_note(existing: str | None, *, supervise: bool) -> str:
    """Put the note between markers, so that the next start replaces it and keeps the rest of the file."""
    block = f"{BEGIN}\n{note(supervise=supervise)}{END}\n"
    before, begin, rest = (existing or "").partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        return before + block + after.removeprefix("\n")
    if not existing:
        return block
    return existing + ("\n" if existing.endswith("\n") else "\n\n") + block
