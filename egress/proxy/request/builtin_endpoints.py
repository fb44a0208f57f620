"""The endpoints of the proxy itself, on http://_egress.local: /allowlist, /health and /why.

Trust boundary: answers go to the bottle's agent: nothing about other bottles in them, and no secret's name.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from egress.proxy.errors import BadRequest, Refusal
from egress.proxy.http.heads import RequestHead
from egress.proxy.http.targets import Target
from egress.proxy.request.dry_run import why
from egress.proxy.state.bottle import BottleState
from egress.proxy.state.proxy import Proxy
from egress.proxy.state.records import Record

NAME = "_egress.local"


def answer(
    proxy: Proxy, bottle: BottleState, head: RequestHead, target: Target, record: Record
) -> bytes | None:
    """The whole response, or None for a request to the web process. Raises Refusal."""
    if target.host != NAME and target.port in (80, proxy.config.supervise_port):
        return None
    if target.host != NAME or target.port != 80:
        raise BadRequest("port", f"Use http://{target.host}/ without a port.")
    record.verdict, record.status = "local", 200
    response = _answer(proxy, bottle, head, target, record)
    if head.length:
        raise BadRequest("bad-body", f"{NAME} takes no request body.")
    if record.verdict == "refused":  # the request that /why was asked about
        bottle.counters["refused"] += 1
    return response


def _answer(proxy: Proxy, bottle: BottleState, head: RequestHead, target: Target, record: Record) -> bytes:
    if head.method not in ("GET", "HEAD"):
        raise Refusal("method", f"{NAME} answers GET only.", 405)
    if target.path == "/allowlist":
        plain = allowlist(bottle)
    elif target.path == "/health":
        plain = {"ok": True, **bottle.ack().as_dict()}
    elif target.path == "/why":
        plain = why(proxy, bottle, target, record)
    else:
        raise Refusal("not-found", f"{NAME} has /allowlist, /health and /why?url=…", 404)
    body = (json.dumps(plain, indent=2) + "\n").encode("ascii")
    start = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n"
    return start + b"Content-Length: %d\r\n\r\n" % len(body) + (b"" if head.method == "HEAD" else body)


def allowlist(bottle: BottleState) -> dict[str, Any]:
    """The part of the live table that the agent may know."""
    snapshot, now = bottle.snapshot, datetime.now(UTC)
    routes = []
    for route in snapshot.table.open_routes(now):
        plain = route.as_public_dict()
        if plain["lease"] is not None:
            plain["lease"]["uses_left"] = bottle.uses.left(route)
        routes.append(plain)
    return {"bottle": bottle.slug, "version": snapshot.version, "routes": routes}
