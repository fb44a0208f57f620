"""What a refused request gets: the reason and, where asking can help, the tool call that asks for it.

Trust boundary: the text goes to an agent, and parts of it came from one. JSON and plain text only.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from egress.paths import MAX_PREFIX
from egress.policy import Verdict

from .errors import Refusal
from .head import RequestHead
from .targets import Target

_MALFORMED = frozenset({"bad-host", "bad-path"})


def refusal_for(verdict: Verdict, target: Target, method: str) -> Refusal:
    """The answer to a request that the policy does not allow."""
    status = 400 if verdict.reason in _MALFORMED else 403
    return Refusal(verdict.reason, verdict.sentence, status, ask=_tool_call(verdict, target, method))


def _tool_call(verdict: Verdict, target: Target, method: str) -> dict[str, Any] | None:
    if verdict.ask is None:
        return None
    path = target.path
    if (
        len(path) > MAX_PREFIX
    ):  # records keep what is said here, and the gate's tool takes no URL of any length
        path = next(iter(verdict.ask.get("path_allowlist", ())), "/")
    url = f"{target.scheme}://{target.host}{path}"
    why = f"{method} {url} was refused ({verdict.reason})."
    if verdict.reason == "gate":
        return {"tool": "pipelock-block", "arguments": {"failed_url": url, "justification": why}}
    return {"tool": "egress-block", "arguments": {**verdict.ask, "justification": why}}


def answer(
    refusal: Refusal, *, head: RequestHead | None, target: Target | None, close: bool, extra: bytes = b""
) -> bytes:
    """The whole response."""
    body, kind = _body(refusal, head, target)
    lines = [
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n".encode("ascii"),
        b"Content-Type: " + kind + b"\r\nX-Egress-Reason: " + refusal.reason.encode("ascii"),
        b"\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
        extra,
        b"Content-Length: %d\r\n" % len(body),
        b"Connection: close\r\n\r\n" if close else b"\r\n",
    ]
    return b"".join(lines) + (b"" if head is not None and head.method == "HEAD" else body)


def _body(refusal: Refusal, head: RequestHead | None, target: Target | None) -> tuple[bytes, bytes]:
    plain: dict[str, Any] = {"error": "egress-refused", "reason": refusal.reason, "message": refusal.sentence}
    if head is not None and target is not None:
        plain |= {"host": target.host, "method": head.method, "path": target.path}
    plain |= refusal.details
    if refusal.ask is not None:
        plain["ask"] = refusal.ask
    if head is not None and _prefers_text(head):
        return _as_text(plain).encode("utf-8"), b"text/plain; charset=utf-8"
    return (json.dumps(plain, indent=2, ensure_ascii=True) + "\n").encode("ascii"), b"application/json"


def _prefers_text(head: RequestHead) -> bool:
    accepted = b",".join(head.values(b"accept")).lower()
    return b"text/" in accepted and b"json" not in accepted


def _as_text(plain: dict[str, Any]) -> str:
    text = f"egress refused ({plain['reason']}): {plain['message']}\n"
    if "ask" in plain:
        arguments = json.dumps(plain["ask"]["arguments"], ensure_ascii=True)
        text += f"To ask for it, call the tool {plain['ask']['tool']} with {arguments}\n"
    return text
