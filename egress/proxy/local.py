"""What the proxy answers itself, on http://_egress.local: what is allowed, whether it works, and why not.

Trust boundary: answers go to the bottle's agent: nothing about other bottles in them, and no secret's name.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from egress.errors import PolicyError
from egress.policy import Request, decide, used_up

from .bottles import Bottle
from .errors import Refusal
from .head import RequestHead
from .refusals import refusal_for
from .targets import MOST_PARAMETERS, Target, too_many_parameters

NAME = "_egress.local"


def answer(bottle: Bottle, head: RequestHead, target: Target) -> bytes:
    """The whole response. Raises Refusal."""
    if head.method not in ("GET", "HEAD"):
        raise Refusal("method", f"{NAME} answers GET only.", 405)
    if target.path == "/allowlist":
        plain = allowlist(bottle)
    elif target.path == "/health":
        plain = {"ok": True, **bottle.ack().as_dict()}
    elif target.path == "/why":
        plain = _why(bottle, target)
    else:
        raise Refusal("not-found", f"{NAME} has /allowlist, /health and /why?url=…", 404)
    body = (json.dumps(plain, indent=2) + "\n").encode("ascii")
    start = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n"
    return start + b"Content-Length: %d\r\n\r\n" % len(body) + (b"" if head.method == "HEAD" else body)


def allowlist(bottle: Bottle) -> dict[str, Any]:
    """The live table as the agent may know it."""
    snapshot, now = bottle.snapshot, datetime.now(UTC)
    routes = []
    for route in snapshot.table.open_routes(now):
        plain = route.as_public_dict()
        if plain["lease"] is not None:
            plain["lease"]["uses_left"] = bottle.uses.left(route)
        routes.append(plain)
    return {"bottle": bottle.slug, "version": snapshot.version, "routes": routes}


def _why(bottle: Bottle, target: Target) -> dict[str, Any]:
    text = target.origin_form.partition(b"?")[2].decode("ascii")
    try:
        query = parse_qs(text, max_num_fields=MOST_PARAMETERS)
    except ValueError as error:
        raise too_many_parameters() from error
    url, method = query.get("url", [""])[0], query.get("method", ["GET"])[0]
    try:
        request = Request.from_url(method, url)
    except PolicyError as error:
        raise Refusal("bad-url", f"Give ?url=https://host/path, percent-encoded: {error}.", 400) from error
    verdict = decide(request, bottle.snapshot, now=datetime.now(UTC))
    if verdict.allowed and verdict.route is not None and bottle.uses.left(verdict.route) == 0:
        verdict = used_up(request, verdict.route)
    plain: dict[str, Any] = {
        "url": url,
        "method": request.method,
        "allowed": verdict.allowed,
        "reason": verdict.reason,
        "message": verdict.sentence,
    }
    if not verdict.allowed:
        asked = Target(request.scheme, request.host, request.port, request.path, b"")
        plain["ask"] = refusal_for(verdict, asked, request.method).ask
    return plain
