"""The short way for the usual request inside an inspected connection: served where it arrives, no task woken.

Trust boundary: the same parsers, the same decision and the same search as for every other request. What is
out of the ordinary, on either side, goes to the connection's task.
"""

from __future__ import annotations

from datetime import UTC, datetime

from egress.dlp import Scanner
from egress.errors import BadPath
from egress.paths import canonical_path
from egress.policy import PORTS, Request, Snapshot, decide_connect
from egress.routes import Route

from .bottles import Bottle
from .errors import Refusal
from .exchange import REPEATABLE, Exchange
from .head import Field, RequestHead, ResponseHead, parse_request, parse_response
from .inspection import conceal, search_head
from .origin import METHOD_OVERRIDES, Origin
from .plane import DataPlane
from .records import Record
from .targets import Target, inner_target
from .upstream import Key
from .wire import Wire
from .writing import request_bytes, response_bytes

_END = b"\r\n\r\n"


class Express:
    """A flow, while it is busy.

    For a request that can be repeated, has no body and needs no credential or lease, when there is a kept
    connection to send it on, and for an answer that arrives in one piece.
    """

    tunnelled = False
    route: Route
    head: RequestHead
    target: Target
    record: Record

    def __init__(self, plane: DataPlane, bottle: Bottle, client: Wire, host: str) -> None:
        self.served = False
        self._plane = plane
        self._limits = plane.limits
        self._bottle = bottle
        self._client = client
        self._host = host
        self._host_bytes = host.encode("ascii")
        self._upstream: Wire | None = None
        self._gave_up = False
        self._is_cut = False
        self._snapshot: Snapshot | None = None  # what the next three were found out by
        self._route: Route | None = None
        self._harmless: list[Field] | None = None
        self._searched_by: Scanner | None = None

    @property
    def request(self) -> Request:
        return self.target.asked_with(self.head.method)

    @property
    def busy(self) -> bool:
        return self._upstream is not None

    @property
    def stuck(self) -> bool:
        """Busy with a request that only the task can bring to an end."""
        upstream, client = self._upstream, self._client
        return upstream is not None and (
            self._gave_up or self._is_cut or upstream.ended or client.ended or client.expired
        )

    def cut(self) -> None:
        self._is_cut = True
        self._client.abort()
        if self._upstream is not None:
            self._upstream.abort()
        self._client.bell.ring()

    def take(self, data: bytes) -> bool:
        """Whether this was a request that is now on its way. If not, nothing has happened yet."""
        client = self._client
        if self._upstream is not None or client.buffer or client.choked or self._plane.stopping:
            return False
        if len(data) > self._limits.head_bytes or data.find(_END) != len(data) - 4:
            return False
        try:
            head = parse_request(data, max_fields=self._limits.head_fields)
            if head.method not in REPEATABLE or head.length or b"upgrade" in head.single:
                return False
            target = inner_target(head, "https", self._host, 443)
        except Refusal:
            return False
        route = self._allowed(head, target)
        return route is not None and head.keeps_alive and self._send(head, target, route)

    def _allowed(self, head: RequestHead, target: Target) -> Route | None:
        """By the same rules as every request; what depends on the host alone is asked once for each table."""
        if self._snapshot is not self._bottle.snapshot:
            self._look_up(self._bottle.snapshot)
        route = self._route
        if route is None or not route.admits_method(head.method):
            return None
        try:
            if not route.admits_path(canonical_path(target.path)):
                return None
        except BadPath:
            return None
        return route if self._may_leave(head, target, route) else None

    def _look_up(self, snapshot: Snapshot) -> None:
        verdict = decide_connect(self._host, PORTS["https"], snapshot, now=datetime.now(UTC))
        route = verdict.route if verdict.allowed else None
        ordinary = route is not None and not (route.auth or route.lease or route.dlp.incoming)
        self._route = route if ordinary else None
        self._snapshot, self._harmless = snapshot, None

    def _may_leave(self, head: RequestHead, target: Target, route: Route) -> bool:
        """Tools send the same headers again and again: those of the last request are not looked at twice."""
        scanner = self._plane.scanners.scanner(self._bottle) if route.dlp.searches_requests else None
        if head.travelling is self._harmless and scanner is self._searched_by:
            return scanner is None or scanner.find_in_url(target.host, target.origin_form) is None
        if route.methods and any(key.replace(b"_", b"-") in METHOD_OVERRIDES for key, _, _ in head.fields):
            return False
        if scanner is not None and search_head(scanner, target, head, head.travelling) is not None:
            return False
        self._harmless, self._searched_by = head.travelling, scanner
        return True

    def _send(self, head: RequestHead, target: Target, route: Route) -> bool:
        client, bottle = self._client, self._bottle
        upstream = bottle.pool.take(self._key(route), client.bell, repeatable=True)
        if upstream is None:
            return False
        self.head, self.target, self.route = head, target, route
        self.record = record = Record(bottle.slug)
        record.method, record.scheme, record.host, record.path = (
            head.method,
            "https",
            target.host,
            target.path,
        )
        record.route, record.version = route.host, bottle.snapshot.version
        record.url_is_clean = route.dlp.searches_requests
        record.verdict, record.reason = "allowed", "ok"
        bottle.counters["requests"] += 1
        bottle.flows.add(self)
        self.served = True
        self._upstream = upstream
        upstream.sink = self._take_answer
        client.deadline = client.clock() + self._limits.response_seconds
        upstream.write(request_bytes(head, target.origin_form, self._host_bytes, head.travelling))
        return True

    def _key(self, route: Route) -> Key:
        return ("https", self._host, route.pinned_addresses)

    def _take_answer(self, data: bytes) -> None:
        answer = self._whole_answer(data)
        upstream, client, record = self._upstream, self._client, self.record
        assert upstream is not None  # noqa: S101
        if answer is None or self._is_cut:
            self._gave_up = True
            upstream.stop_draining(data)
            client.bell.ring()
            return
        record.status, record.bytes_in = answer.status, answer.length
        record.note_first_byte()
        body = data[len(data) - answer.length :] if answer.length else b""
        client.write(response_bytes(answer, answer.travelling, close=False) + body)
        self._upstream = None
        self._bottle.flows.remove(self)
        if not record.url_is_clean:
            conceal(self._plane.scanners.scanner(self._bottle), record)
        self._plane.records.add(record)
        if answer.keeps_alive and not upstream.ended:
            self._bottle.pool.give_back(self._key(self.route), upstream)
        else:
            upstream.close()
        client.deadline = client.clock() + self._limits.keep_alive_seconds
        if client.buffer or client.ended or self._plane.stopping:
            client.bell.ring()

    def _whole_answer(self, data: bytes) -> ResponseHead | None:
        """The head of an answer that is in `data` from its first byte to its last, and nothing after it."""
        end = data.find(_END) + 4
        if not 4 <= end <= self._limits.head_bytes:
            return None
        try:
            answer = parse_response(
                data[:end], max_fields=self._limits.head_fields, to_head=self.head.method == "HEAD"
            )
        except Refusal:
            return None
        return answer if answer.status >= 200 and len(data) - end == answer.length else None

    def hand_over(self) -> Exchange:
        """The request under way, for the task to go on with. What came of its answer is in the buffer."""
        upstream = self._upstream
        assert upstream is not None  # noqa: S101
        self._upstream, self._gave_up = None, False
        upstream.sink = None
        self._bottle.flows.remove(self)
        origin = Origin(
            self._plane, self._bottle, self.target, self.route, head=self.head, record=self.record
        )
        exchange = Exchange(
            self._client, self.head, origin, self._limits, self.record,
            request=self.request, route=self.route, sent_on=upstream,
        )  # fmt: skip
        if self._is_cut:
            exchange.cut()
        return exchange
