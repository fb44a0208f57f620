"""Whether a request may leave: every check before an origin is looked up, for requests and for /why.

Trust boundary: bytes from inside a bottle are judged here. Nothing is sent, and no use of a lease is taken.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from egress.policy.decide import Request, Verdict, decide, decide_connect
from egress.policy.routes import Route
from egress.proxy.errors import BadRequest, Refusal
from egress.proxy.http.heads import RequestHead, parse_request
from egress.proxy.http.targets import Target
from egress.proxy.request.inspection import Inspection, check_url, conceal, unsearchable
from egress.proxy.request.origin import Origin
from egress.proxy.request.refusals import refusal_for
from egress.proxy.state.bottle import BottleState
from egress.proxy.state.proxy import Proxy
from egress.proxy.state.records import Record, blank_record
from egress.proxy.tls.session import Session

log = logging.getLogger(__name__)


class CurrentRequest:
    """A request of a connection as far as it is known: its head, where it aims, and the record of it."""

    def __init__(self, proxy: Proxy, bottle: BottleState | None) -> None:
        self._proxy = proxy
        self.head: RequestHead | None = None
        self.target: Target | None = None
        self.record = blank_record(bottle.slug if bottle is not None else "")
        self.record.begin()

    def parse(self, raw: bytes) -> RequestHead:
        """Raises BadRequest."""
        self.record.begin()
        self.head = head = parse_request(raw, max_fields=self._proxy.limits.head_fields)
        self.record.method = head.method
        return head

    def set_target(self, target: Target) -> None:
        self.target, record = target, self.record
        record.scheme, record.host, record.path = target.scheme, target.host, target.path

    def note_allowed(self) -> None:
        self.record.verdict, self.record.reason = "allowed", "ok"

    def note_refusal(self, refusal: Refusal) -> None:
        record = self.record
        record.verdict = "refused" if refusal.is_ours else "allowed"
        record.reason, record.status, record.ask = refusal.reason, refusal.status, refusal.ask

    def note_end(self, reason: str) -> None:
        """Record why the request did not finish, unless a more exact reason is known."""
        if self.head is not None and self.record.reason in ("", "ok"):
            self.record.reason = reason

    def keep_record(self, bottle: BottleState | None) -> None:
        """Add the record, unless there was no request and nothing went wrong."""
        if self.head is None and not self.record.reason:
            return
        if bottle is not None and not self.record.url_is_clean:
            conceal(self._proxy.scanners.search(bottle), self.record)
        self._proxy.records.add(self.record)


def admit(proxy: Proxy, bottle: BottleState, head: RequestHead, target: Target, record: Record) -> Origin:
    """Decide on and search a plain or inspected request, and return where it goes. Raises Refusal."""
    if head.method == "TRACE":  # its answer would repeat what we add to the request
        raise Refusal("method", "TRACE is never allowed.", 405)
    request = target.asked_with(head.method)
    route = _decide(proxy, bottle, request, target, record)
    record.route = route.host
    return Origin(proxy, bottle, target, route, head=head, request=request, record=record)


def _decide(proxy: Proxy, bottle: BottleState, request: Request, target: Target, record: Record) -> Route:
    verdict = decide(request, bottle.snapshot, now=datetime.now(UTC))
    if not verdict.allowed or verdict.route is None:
        record.route = verdict.route.host if verdict.route else None
        if verdict.route is None or verdict.route.dlp.searches_requests:
            check_url(proxy.scanners.search(bottle), target, record)
        raise refusal_for(verdict, target, request.method)
    return verdict.route


def admit_connect(proxy: Proxy, bottle: BottleState, target: Target, record: Record) -> Verdict:
    """The verdict on a CONNECT that is answered with 200. Raises Refusal for one that is not.

    A refusal that an operator could lift is told inside TLS, where method and path are known.
    """
    if target.is_ours:
        raise BadRequest("bad-target", f"Use http://{target.host}/ without CONNECT.")
    verdict = decide_connect(target.host, target.port, bottle.snapshot, now=datetime.now(UTC))
    record.route = verdict.route.host if verdict.route else None
    if not verdict.allowed and (verdict.ask is None or proxy.config.refuse_at_connect):
        raise refusal_for(verdict, target, "CONNECT")
    return verdict


def tunnelled(verdict: Verdict) -> Route | None:
    """The route, if its TLS is left to the bottle and the origin."""
    route = verdict.route
    return route if verdict.allowed and route is not None and route.is_bare else None


def admit_tunnel(proxy: Proxy, bottle: BottleState, target: Target, route: Route, record: Record) -> Request:
    """The request that stands for all the traffic of a tunnel. Raises Refusal."""
    search = proxy.scanners.search(bottle)
    chosen = target.host != route.host  # by the bottle, within a pattern: it may hold anything
    if chosen and search.handed.problem and route.dlp.searches_requests:
        raise unsearchable(record)
    Inspection(search.scanner, route, record).check_host(target.host)
    return Request("https", target.host, target.port, "CONNECT", "/")


def admit_inside(bottle: BottleState, host: str) -> Session:
    """A TLS session with a certificate for `host` by the bottle's CA. Raises Refusal."""
    try:
        return bottle.authority.session_for(host)
    except (OSError, ValueError) as error:
        log.error("bottle %s: its CA cannot be used: %s", bottle.slug, error)
        raise Refusal("no-ca", "The bottle's CA cannot be used. Tell the operator.", 502) from error
