"""The short way for the usual request inside an inspected connection: served where it arrives, no task woken.

Trust boundary: the same parsers, the same decision and the same search as for every other request. What is
out of the ordinary, on either side, goes to the connection's task.
"""

from __future__ import annotations

from datetime import UTC, datetime
from time import monotonic, perf_counter, time
from typing import NamedTuple

from egress.errors import BadPath
from egress.paths import canonical_path
from egress.policy import PORTS, Request, Snapshot, decide_connect
from egress.routes import Route

from .bottles import Bottle, Search
from .errors import Refusal
from .exchange import Exchange
from .head import RequestHead, ResponseHead, is_accepted, parse_request, parse_response, read_usual_line
from .inspection import conceal, search_head
from .origin import METHOD_OVERRIDES, Origin
from .plane import DataPlane
from .records import Record
from .targets import Target, inner_target
from .upstream import Key
from .wire import Wire
from .writing import request_bytes, response_bytes

_END = b"\r\n\r\n"


class _Habit(NamedTuple):
    """What is true of requests with these fields, under one table and with one set of secrets."""

    fields: bytes  # everything that follows the first line
    search: Search
    route: Route
    searched: bool  # so is the line, then
    key: Key
    sent: bytes  # to the origin, in place of `fields`


class _Asked(NamedTuple):
    """The request under way, and when it came."""

    raw: bytes
    method: str
    path: str
    habit: _Habit
    at: float
    clock: float


class _Answer(NamedTuple):
    """A head that came, how it was read, and what is sent on in its place."""

    raw: bytes
    to_head: bool
    head: ResponseHead
    keeps_alive: bool
    sent: bytes


class Handed(NamedTuple):
    """A request that turned out not to be for the short way."""

    head: RequestHead
    target: Target
    record: Record
    exchange: Exchange


class Express:
    """A flow, while it is busy.

    For a request that can be repeated, has no body and needs no credential or lease, when there is a kept
    connection to send it on, and for an answer that arrives in one piece.

    A tool sends the same fields again and again, and an origin the same head: what was found out about the
    last ones is not found out twice. The line of a request is read, decided on and searched every time.
    """

    tunnelled = False

    def __init__(self, plane: DataPlane, bottle: Bottle, client: Wire, host: str) -> None:
        self._plane = plane
        self._limits = plane.limits
        self._bottle = bottle
        self._client = client
        self._host = host
        self._asked: _Asked | None = None  # last
        self._upstream: Wire | None = None
        self._gave_up = False
        self._is_cut = False
        self._habit: _Habit | None = None
        self._answer: _Answer | None = None
        self._snapshot: Snapshot | None = None  # which the route was found by
        self._route: Route | None = None

    @property
    def request(self) -> Request:
        assert self._asked is not None  # noqa: S101
        return Request("https", self._host, PORTS["https"], self._asked.method, self._asked.path)

    @property
    def route(self) -> Route | None:
        return self._asked.habit.route if self._asked is not None else None

    @property
    def served(self) -> bool:
        return self._asked is not None

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

    # --- the request

    def take(self, data: bytes) -> bool:
        """Whether this was a request that is now on its way. If not, nothing has happened yet."""
        client = self._client
        if self._upstream is not None or client.buffer or client.choked or self._plane.stopping:
            return False
        if len(data) > self._limits.head_bytes or data.find(_END) != len(data) - 4:
            return False
        first, _, fields = data.partition(b"\r\n")
        line = read_usual_line(first)
        if line is None:
            return False
        method, path, origin_form = line
        habit = self._habit
        if habit is None or not self._holds(habit, data, fields):
            self._habit = habit = self._learn(data, fields)
        if habit is None or not self._may_leave(habit, method, path, origin_form):
            return False
        upstream = self._bottle.pool.take(habit.key, client.bell, repeatable=True)
        if upstream is None:
            return False
        self._asked = _Asked(data, method, path, habit, time(), perf_counter())
        self._upstream = upstream
        self._bottle.counters["requests"] += 1
        self._bottle.flows.add(self)
        client.deadline = client.clock() + self._limits.response_seconds
        upstream.sink = self._take_answer
        self._plane.outbox.put(upstream, b"%b\r\n%b" % (first, habit.sent))
        return True

    def _holds(self, habit: _Habit, data: bytes, fields: bytes) -> bool:
        bottle, search = self._bottle, habit.search
        return (
            fields == habit.fields
            and search is bottle.search
            and search.snapshot is bottle.snapshot
            and monotonic() < search.until
            and is_accepted(data)
        )

    def _learn(self, data: bytes, fields: bytes) -> _Habit | None:
        """None if such a request is not for the short way."""
        try:
            head = parse_request(data, max_fields=self._limits.head_fields)
            target = inner_target(head, "https", self._host, PORTS["https"])
        except Refusal:
            return None
        route = self._usual_route()
        if route is None or head.length or b"upgrade" in head.single or not head.keeps_alive:
            return None
        if route.methods and any(key.replace(b"_", b"-") in METHOD_OVERRIDES for key, _, _ in head.fields):
            return None
        search, searched = self._plane.scanners.search(self._bottle), route.dlp.searches_requests
        if searched and search_head(search.scanner, target, head, head.travelling) is not None:
            return None
        sent = request_bytes(head, target.origin_form, self._host.encode("ascii"), head.travelling)
        return _Habit(
            fields, search, route, searched,
            ("https", self._host, route.pinned_addresses), sent.partition(b"\r\n")[2],
        )  # fmt: skip

    def _usual_route(self) -> Route | None:
        """By the same rules as for every request; what depends on the host alone is asked once per table."""
        snapshot = self._bottle.snapshot
        if self._snapshot is not snapshot:
            verdict = decide_connect(self._host, PORTS["https"], snapshot, now=datetime.now(UTC))
            route = verdict.route if verdict.allowed else None
            ordinary = route is not None and not (route.auth or route.lease or route.dlp.incoming)
            self._snapshot, self._route = snapshot, route if ordinary else None
        return self._route

    def _may_leave(self, habit: _Habit, method: str, path: str, origin_form: bytes) -> bool:
        route = habit.route
        if not route.admits_method(method):
            return False
        try:
            if not route.admits_path(canonical_path(path)):
                return False
        except BadPath:
            return False
        return not habit.searched or habit.search.scanner.find_in_url(self._host, origin_form) is None

    # --- the answer

    def _take_answer(self, data: bytes) -> None:
        asked, upstream, client = self._asked, self._upstream, self._client
        assert asked is not None and upstream is not None  # noqa: S101
        answer = self._whole_answer(data, to_head=asked.method == "HEAD")
        if answer is None or self._is_cut:
            self._gave_up = True
            upstream.stop_draining(data)
            client.bell.ring()
            return
        record = self._record(asked, perf_counter(), answer.head.status, answer.head.length)
        self._plane.outbox.put(client, answer.sent + data[len(answer.raw) :])
        self._upstream = None
        self._bottle.flows.discard(self)
        if not record.url_is_clean:
            conceal(self._plane.scanners.scanner(self._bottle), record)
        self._plane.records.add(record)
        if answer.keeps_alive and not upstream.ended:
            self._bottle.pool.give_back(asked.habit.key, upstream)
        else:
            upstream.close()
        client.deadline = client.clock() + self._limits.keep_alive_seconds
        if client.buffer or client.ended or self._plane.stopping:
            client.bell.ring()

    def _record(self, asked: _Asked, first_byte: float = 0.0, status: int = 0, length: int = 0) -> Record:
        habit = asked.habit
        return Record(
            self._bottle.slug, asked.at, asked.clock, first_byte, 0.0, habit.search.snapshot.version,
            asked.method, "https", self._host, asked.path, habit.route.host, "allowed", "ok",
            status, 0, length, url_is_clean=habit.searched,
        )  # fmt: skip

    def _whole_answer(self, data: bytes, *, to_head: bool) -> _Answer | None:
        """An answer that is in `data` from its first byte to its last, and nothing after it."""
        end = data.find(_END) + 4
        answer = self._answer
        if answer is None or answer.raw != data[:end] or answer.to_head is not to_head:
            self._answer = answer = self._read_answer(data[:end], to_head=to_head)
        return answer if answer is not None and len(data) - end == answer.head.length else None

    def _read_answer(self, raw: bytes, *, to_head: bool) -> _Answer | None:
        if not 4 < len(raw) <= self._limits.head_bytes:
            return None
        try:
            head = parse_response(raw, max_fields=self._limits.head_fields, to_head=to_head)
        except Refusal:
            return None
        if head.status < 200:
            return None
        sent = response_bytes(head, head.travelling, close=False)
        return _Answer(raw, to_head, head, head.keeps_alive, sent)

    def hand_over(self) -> Handed:
        """The request under way, for the task to go on with. What came of its answer is in the buffer."""
        asked, upstream = self._asked, self._upstream
        assert asked is not None and upstream is not None  # noqa: S101
        self._upstream, self._gave_up = None, False
        upstream.sink = None
        self._bottle.flows.discard(self)
        route, record = asked.habit.route, self._record(asked)
        head = parse_request(asked.raw, max_fields=self._limits.head_fields)
        target = inner_target(head, "https", self._host, PORTS["https"])
        origin = Origin(self._plane, self._bottle, target, route, head=head, record=record)
        exchange = Exchange(
            self._client, head, origin, self._limits, record,
            request=self.request, route=route, sent_on=upstream,
        )  # fmt: skip
        if self._is_cut:
            exchange.cut()
        return Handed(head, target, record, exchange)
