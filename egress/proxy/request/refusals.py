"""The answer to a refused request: the reason and, where asking can help, the tool call that asks for it.

Trust boundary: the text goes to an agent, and parts of it came from one. JSON and plain text only.
"""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import Any

from egress.dlp.git_push import RESULT
from egress.policy.decide import Verdict
from egress.policy.paths import MAX_PREFIX
from egress.proxy.errors import Refusal
from egress.proxy.http.heads import RequestHead
from egress.proxy.http.targets import Target

_MALFORMED = frozenset({"bad-host", "bad-path"})
# Programs that show a refusal only when it is text, and do not say so in Accept: git, and the go command,
# which sends the default name of Go programs.
_SHOW_TEXT_ONLY = (b"git/", b"Go-http-client/")
_REFS = "/info/refs"
_GIT = re.compile(rb"/info/refs\?service=(git-upload-pack|git-receive-pack)\Z")


def refusal_for(verdict: Verdict, target: Target, method: str) -> Refusal:
    """The answer to a request that the policy does not allow."""
    status = 400 if verdict.reason in _MALFORMED else 403
    return Refusal(verdict.reason, verdict.sentence, status, ask=_tool_call(verdict, target, method))


def _tool_call(verdict: Verdict, target: Target, method: str) -> dict[str, Any] | None:
    if verdict.ask is None:
        return None
    path = target.path
    if len(path) > MAX_PREFIX:  # it is recorded, and the gate's tool limits the length of a URL
        path = next(iter(verdict.ask.get("path_allowlist", ())), "/")
    url = f"{target.scheme}://{target.host}{path}"
    why = f"{method} {url} was refused ({verdict.reason})."
    if verdict.reason == "gate":
        return {"tool": "pipelock-block", "arguments": {"failed_url": url, "justification": why}}
    return {
        "tool": "egress-block",
        "arguments": {**_add_git_second_request(verdict.ask, target), "justification": why},
    }


def _add_git_second_request(ask: dict[str, Any], target: Target) -> dict[str, Any]:
    """Ask for both requests of a git fetch or push: git shows the answer to the first one only."""
    service, (first,) = _GIT.search(target.origin_form), ask.get("path_allowlist") or [""]
    if service is None or not first.endswith(_REFS) or len(first) + len(service[1]) > MAX_PREFIX:
        return ask
    second = f"{first.removesuffix(_REFS)}/{service[1].decode('ascii')}"
    return {**ask, "path_allowlist": sorted([first, second]), "methods": ["GET", "POST"]}


def answer(
    refusal: Refusal, *, head: RequestHead | None, target: Target | None, close: bool, extra: bytes = b""
) -> bytes:
    """The whole response."""
    body, kind = _body(refusal, head, target)
    if refusal.git_report is not None:
        body, kind = refusal.git_report, RESULT
    lines = [
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n".encode("ascii"),
        b"Content-Type: " + kind + b"\r\nX-Egress-Reason: " + refusal.reason.encode("ascii"),
        b"\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
        extra,
        b"Content-Length: %d\r\n" % len(body),
        b"Connection: close\r\n\r\n" if close else b"\r\n",
    ]
    return b"".join(lines) + (b"" if head is not None and head.method == "HEAD" else body)


def described(refusal: Refusal, asked: dict[str, str]) -> dict[str, Any]:
    plain = {"reason": refusal.reason, "message": refusal.sentence, **asked, **refusal.details}
    return plain if refusal.ask is None else {**plain, "ask": refusal.ask}


def asked_for(method: str, target: Target) -> dict[str, str]:
    return {"host": target.host, "method": method, "path": target.path}


def _body(refusal: Refusal, head: RequestHead | None, target: Target | None) -> tuple[bytes, bytes]:
    asked = asked_for(head.method, target) if head is not None and target is not None else {}
    plain = {"error": "egress-refused", **described(refusal, asked)}
    if head is not None and _prefers_text(head):
        return _as_text(plain).encode("utf-8"), b"text/plain; charset=utf-8"
    return (json.dumps(plain, indent=2, ensure_ascii=True) + "\n").encode("ascii"), b"application/json"


def _prefers_text(head: RequestHead) -> bool:
    accepted = b",".join(head.values(b"accept")).lower()
    if b"json" in accepted:
        return False
    return b"text/" in accepted or any(
        value.startswith(_SHOW_TEXT_ONLY) for value in head.values(b"user-agent")
    )


def _as_text(plain: dict[str, Any]) -> str:
    text = f"egress refused ({plain['reason']}): {plain['message']}\n"
    if "ask" in plain:
        arguments = json.dumps(plain["ask"]["arguments"], ensure_ascii=True)
        text += f"To ask for it, call the tool {plain['ask']['tool']} with {arguments}\n"
    return text
