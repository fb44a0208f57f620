"""A dry run of a request: `/why?url=…&method=…` on http://_egress.local says what would happen to it.

Trust boundary: the URL is the agent's. It is read and judged by what reads and judges requests, and if a
secret is in it, nothing of it is repeated. To guess one by asking leaves as much of a trace as to send it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from egress.policy.decide import Request, used_up
from egress.policy.hostnames import CONTROL_PLANE_NAMES
from egress.policy.routes import Route
from egress.proxy.errors import Refusal
from egress.proxy.http.heads import RequestHead, parse_request
from egress.proxy.http.targets import (
    MOST_PARAMETERS,
    Target,
    connect_target,
    forward_target,
    inner_target,
    read_authority,
    too_many_parameters,
)
from egress.proxy.request.admission import admit, admit_connect, admit_inside, admit_tunnel, tunnelled
from egress.proxy.request.inspection import CONCEALED
from egress.proxy.request.refusals import asked_for, described, refusal_for
from egress.proxy.state.bottle import BottleState
from egress.proxy.state.proxy import Proxy
from egress.proxy.state.records import Record, blank_record

_URL = re.compile(r"(?i:(https?))://([^/?#]+)([^?#]*)((?:\?[^#]*)?)(?:#.*)?")
_ONE_WORD = re.compile(r"[\x21-\x7e]+")  # anything else could end the line that it is put into
_OF_OUR_OWN = frozenset({"dlp", "dlp-unreadable"})  # their messages repeat nothing of the URL


class _Asked(NamedTuple):
    """As a client takes the URL apart: its fragment stays there."""

    method: str
    scheme: str
    authority: str
    path: str
    query: str


def why(proxy: Proxy, bottle: BottleState, target: Target, record: Record) -> dict[str, Any]:
    """The answer. A secret in the question is recorded. Raises Refusal for a malformed question."""
    url, method = _question(target)
    parts = _URL.fullmatch(url)
    if parts is None:
        raise _bad_url("it is not an http or https URL")
    scheme, authority, path, query = parts.groups()
    if _is_ours(authority):
        raise _bad_url("what is bot-bottle's own needs no route")
    dry_run = DryRun(proxy, bottle, _Asked(method, scheme.lower(), authority, path or "/", query))
    plain, record.finding = dry_run.outcome(), dry_run.finding
    search = proxy.scanners.search(bottle)
    kind = search.scanner.kind_in_quoted(f"{method} {url}".encode("ascii"))
    if kind is not None:
        record.finding = {"kind": kind, "where": "url"}
    if record.finding is not None:  # on record, because the answer tells a secret from a guess
        record.verdict, record.reason = record.verdict if plain["allowed"] else "refused", "dlp"
    if search.handed.problem or record.finding is not None:
        _conceal(plain)
    return plain


def _question(target: Target) -> tuple[str, str]:
    text = target.origin_form.partition(b"?")[2].decode("ascii")
    try:
        query = parse_qs(text, keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
    except ValueError as error:
        raise too_many_parameters() from error
    if not {"url"} <= set(query) <= {"url", "method"} or any(len(values) > 1 for values in query.values()):
        raise _bad_url("besides it there can be one method, and nothing else")
    url, method = query["url"][0], query.get("method", ["GET"])[0].upper()
    if not _ONE_WORD.fullmatch(url) or not _ONE_WORD.fullmatch(method):
        raise _bad_url("spaces and characters beyond ASCII are sent encoded, and so they have to be here")
    return url, method


def _is_ours(authority: str) -> bool:
    try:
        return read_authority(authority.encode("ascii"), 0)[0] in CONTROL_PLANE_NAMES
    except Refusal:  # the dry run reports it
        return False


def _bad_url(problem: str) -> Refusal:
    return Refusal("bad-url", f"Give one ?url=https://host/path, percent-encoded: {problem}.", 400)


def _conceal(plain: dict[str, Any]) -> None:
    plain |= {name: CONCEALED for name in ("host", "method", "path") if name in plain}
    plain.pop("ask", None)
    if not plain["allowed"] and plain["reason"] not in _OF_OUR_OWN:
        plain["message"] = "Refused. What was asked may hold a secret: take it out to be told more."


class DryRun:
    """Takes a request along its path, up to where it would leave."""

    def __init__(self, proxy: Proxy, bottle: BottleState, asked: _Asked) -> None:
        self._proxy = proxy
        self._bottle = bottle
        self._asked = asked
        self._asked_for: dict[str, str] = {}  # known once the host could be read
        self._record = blank_record(bottle.slug)  # which is not kept

    @property
    def finding(self) -> dict[str, str] | None:
        return self._record.finding

    def outcome(self) -> dict[str, Any]:
        try:
            if self._asked.scheme == "https":
                self._connect()
            else:
                self._forward()
        except Refusal as refusal:
            return {"allowed": False, **described(refusal, self._asked_for)}
        return {"allowed": True, "reason": "ok", "message": "Allowed.", **self._asked_for}

    def _connect(self) -> None:
        asked = self._asked
        port = "" if ":" in asked.authority else ":443"
        outer = connect_target(self._head("CONNECT", f"{asked.authority}{port}"))
        self._asked_for = asked_for(asked.method, outer._replace(path=asked.path))
        verdict = admit_connect(self._proxy, self._bottle, outer, self._record)
        if (route := tunnelled(verdict)) is not None:
            request = admit_tunnel(self._proxy, self._bottle, outer, route, self._record)
            self._check_uses(request, route, outer)
            return
        admit_inside(self._bottle, outer.host)
        head = self._head(asked.method, asked.path + asked.query)
        self._admit(head, inner_target(head, "https", outer.host, outer.port))

    def _forward(self) -> None:
        asked = self._asked
        head = self._head(asked.method, f"http://{asked.authority}{asked.path}{asked.query}")
        self._admit(head, forward_target(head))

    def _head(self, method: str, target: str) -> RequestHead:
        raw = f"{method} {target} HTTP/1.1\r\nHost: {self._asked.authority}\r\n\r\n".encode("ascii")
        return parse_request(raw, max_fields=self._proxy.limits.head_fields)

    def _admit(self, head: RequestHead, target: Target) -> None:
        self._asked_for = asked_for(head.method, target)
        origin = admit(self._proxy, self._bottle, head, target, self._record)
        self._check_uses(target.asked_with(head.method), origin.route, target)

    def _check_uses(self, request: Request, route: Route, target: Target) -> None:
        if self._bottle.uses.left(route) == 0:
            raise refusal_for(used_up(request, route), target, request.method)
