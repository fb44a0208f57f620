"""What receivers are sent.

Trust boundary: of an agent's text only the host leaves, and in chats nothing in it can be a mention, a link
or markup. Everything else is ids, counts, and fixed text.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from botbottle.core.sanitize import one_line
from supervise.proposals.kind import kind_named

Facts = Mapping[str, Any]
Parts = list[str | tuple[str]]  # a tuple contains a name that a user or an agent chose
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9 .*_-]")
SUPPRESS_EMBEDS = 4  # a flag of Discord's messages
HEADER = "X-Bot-Bottle"


def body_of(kind: str, facts: Facts, link: str) -> bytes:
    """The JSON to send, in ASCII."""
    return json.dumps(_SHAPES[kind](facts, link), ensure_ascii=True).encode("ascii")


def headers_of(body: bytes, *, secret: str, delivery: str, event: str, timestamp: int) -> dict[str, str]:
    """The headers. With a secret, they prove the sender and the time: HMAC-SHA256 of `<timestamp>.<body>`."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "bot-bottle",
        f"{HEADER}-Event": event,
        f"{HEADER}-Delivery": delivery,
        f"{HEADER}-Timestamp": str(timestamp),
    }
    if secret:
        signed = f"{timestamp}.".encode("ascii") + body
        digest = hmac.new(secret.encode("utf-8"), signed, hashlib.sha256).hexdigest()
        headers[f"{HEADER}-Signature"] = f"sha256={digest}"
    return headers


def plain(text: str) -> str:
    """The name without anything that a chat could act on."""
    return _NOT_PLAIN.sub("?", one_line(text, 120))


def sentence(facts: Facts) -> Parts:
    """A sentence about the event, with the names apart so that each chat can quote them."""
    host, bottle = (_target(facts),), (facts.get("bottle") or "",)
    match facts["event"]:
        case "filed":
            risk = f"{facts['risk']}-risk".capitalize()
            return [f"{risk} ask: bottle ", bottle, " wants ", host, f" ({facts['tool']})"]
        case "decided":
            return ["Bottle ", bottle, ", ", host, f": {facts['decision']} by ", (facts["by"],)]
        case "not-live":
            return ["Approved but not live: bottle ", bottle, ", ", host]
        case "stopped":
            code = "" if facts.get("exit_code") is None else f" with exit code {facts['exit_code']}"
            return ["Bottle ", bottle, f" {facts['what']}{code}"]
    return ["This is a test"]


def _target(facts: Facts) -> str:
    """Only a host leaves by its name."""
    if facts.get("host") or not facts.get("tool"):
        return facts.get("host") or ""
    return kind_named(facts["tool"]).noun


def _generic(facts: Facts, link: str) -> dict[str, Any]:
    names = {key: one_line(facts[key], 253) for key in ("host", "by", "bottle") if facts.get(key)}
    return {**facts, **names, "url": link}


def _slack(facts: Facts, link: str) -> dict[str, Any]:
    text = _joined(facts, lambda name: f"`{name}`")
    return {"text": f"{text} <{link}|Open>", "link_names": False, "parse": "none", "unfurl_links": False}


def _discord(facts: Facts, link: str) -> dict[str, Any]:
    text = _joined(facts, lambda name: f"`{name}`")
    return {"content": f"{text} <{link}>", "allowed_mentions": {"parse": []}, "flags": SUPPRESS_EMBEDS}


def _matrix(facts: Facts, link: str) -> dict[str, Any]:
    """For hookshot's incoming webhooks, which show `html` and fall back to `text`."""
    shown = _joined(facts, lambda name: f"<code>{html.escape(name)}</code>")
    address = html.escape(link)
    return {
        "text": f"{_joined(facts, lambda name: name)} {link}",
        "html": f'{shown} <a href="{address}">Open</a>',
        "msgtype": "m.notice",
        "m.mentions": {},
    }


def _joined(facts: Facts, quoted: Callable[[str], str]) -> str:
    parts = (quoted(plain(part[0])) if isinstance(part, tuple) else part for part in sentence(facts))
    pending = facts.get("pending")
    return "bot-bottle: " + "".join(parts) + (f". {pending} pending." if pending is not None else ".")


_SHAPES: dict[str, Callable[[Facts, str], dict[str, Any]]] = {
    "generic": _generic,
    "slack": _slack,
    "discord": _discord,
    "matrix": _matrix,
}
