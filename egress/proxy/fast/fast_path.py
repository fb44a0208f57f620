"""The short way for the usual request inside an inspected connection: served where it arrives, no task woken.

Trust boundary: the same parsers, the same decision and the same search as for every other request. What is
out of the ordinary, on either side, goes to the connection's task.
"""

from __future__ import annotations

from datetime import UTC, datetime
from time import monotonic, perf_counter, time
from typing import NamedTuple

from egress.policy.decide import PORTS, Request, decide_connect
from egress.policy.errors import BadPath
from egress.policy.paths import canonical_path
from egress.policy.routes import Route
from egress.proxy.errors import Refusal
from egress.proxy.fast.head_cache import Answer, CachedRequest
from egress.proxy.http.heads import RequestHead, is_accepted, parse_request, parse_response, read_usual_line
from egress.proxy.http.override_headers import overrides_in
from egress.proxy.http.targets import Target, inner_target
from egress.proxy.http.writer import request_bytes, response_bytes
from egress.proxy.net.connection import Connection
from egress.proxy.request.inspection import conceal, search_head
from egress.proxy.state.bottle import Bottle
from egress.proxy.state.connection_limits import LONG_HEAD
from egress.proxy.state.proxy import Proxy
from egress.proxy.state.records import Record

_END = b"\r\n\r\n"


class HandedOver(NamedTuple):
    """A request that turned out not to be for the short way."""

    head: RequestHead
    target: Target
    record: Record
    route: Route
    upstream: Connection  # that it was sent on
    is_cut: bool


class FastPath:
    """A flow, while it is busy.

    For a request that can be repeated, has no body and needs no credential or lease, when there is a kept
    connection to send it on, and for an answer that arrives in one piece.

    What was found out about the last request, and the last answer, is not found out twice. The line of a
    request is read, decided on and searched every time.
    """

    tunnelled = False

    def __init__(self, proxy: Proxy, bottle: Bottle, client: Connection, host: str) -> None:
        self._proxy = proxy
        self._limits = proxy.limits
        self._bottle = bottle
        self._client = client
        self._host = host
        self._url_start = host.encode("ascii") + b"\n"
        known = bottle.habits.of(host)
        # The last request, which is under way while there is an upstream.
        self._habit = known.request
        self._raw = b""
        self._method = self._path = ""
        self._at = self._clock = 0.0
        self._upstream: Connection | None = None
        self._gave_up = False
        self._is_cut = False
        self._answer = known.answer

    @property
    def request(self) -> Request:
        return Request("https", self._host, PORTS["https"], self._method, self._path)

    @property
    def route(self) -> Route | None:
        return self._habit.route if self._habit is not None else None

    @property
    def served(self) -> bool:
        return bool(self._raw)

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
        client, proxy, bottle = self._client, self._proxy, self._bottle
        if self._upstream is not None or client.buffer or client.choked or client.expired or proxy.stopping:
            return False
        if len(data) > LONG_HEAD:
            return False
        line = read_usual_line(data)
        if line is None:
            return False
        method, path, origin_form, start = line
        habit = self._habit
        if habit is None or not self._holds(habit, data, start):
            self._habit = habit = self._learn(data, start)
            bottle.habits.of(self._host).keep_request(habit)
        if habit is None or not self._may_leave(habit, method, path, origin_form):
            return False
        upstream = bottle.pool.take(habit.key, client, repeatable=True)
        if upstream is None:
            return False
        self._raw, self._method, self._path = data, method, path
        self._at, self._clock = time(), perf_counter()
        self._upstream = upstream
        bottle.counters["requests"] += 1
        bottle.flows.add(self)
        client.deadline = client.clock() + self._limits.response_seconds
        upstream.sink = self._take_answer
        proxy.write_batch.put(upstream, data[:start] + habit.sent)
        return True

    def _holds(self, habit: CachedRequest, data: bytes, start: int) -> bool:
        """Whether it is true of these fields too, now."""
        bottle, search, fields, now = self._bottle, habit.search, habit.fields, monotonic()
        return (
            len(data) == start + len(fields)
            and data.endswith(fields)
            and search is bottle.search
            and search.snapshot is bottle.snapshot
            and search.handed is bottle.handed.look(now)
            and now < search.until
            and is_accepted(data)
        )

    def _learn(self, data: bytes, start: int) -> CachedRequest | None:
        """None if such a request is not for the short way, or is not all that arrived."""
        if data.find(_END) != len(data) - len(_END):
            return None
        try:
            head = parse_request(data, max_fields=self._limits.head_fields)
            target = inner_target(head, "https", self._host, PORTS["https"])
        except Refusal:
            return None
        route = self._usual_route()
        if route is None or head.length or b"upgrade" in head.single or not head.keeps_alive:
            return None
        if overrides_in(head.fields, route):
            return None
        search, searched = self._proxy.scanners.search(self._bottle), route.dlp.searches_requests
        if searched and (
            search.handed.problem or search_head(search.scanner, target, head, head.travelling) is not None
        ):
            return None
        sent = request_bytes(head, target.origin_form, self._host.encode("ascii"), head.travelling)
        return CachedRequest(
            data[start:], search, route, searched,
            ("https", self._host, route.pinned_addresses), sent.partition(b"\r\n")[2],
        )  # fmt: skip

    def _usual_route(self) -> Route | None:
        """By the same rules as for every request; what depends on the host alone is asked once per table."""
        snapshot, habits = self._bottle.snapshot, self._bottle.habits.of(self._host)
        if habits.snapshot is not snapshot:
            verdict = decide_connect(self._host, PORTS["https"], snapshot, now=datetime.now(UTC))
            route = verdict.route if verdict.allowed else None
            ordinary = route is not None and not (route.auth or route.lease or route.dlp.incoming)
            habits.snapshot, habits.route = snapshot, route if ordinary else None
        return habits.route

    def _may_leave(self, habit: CachedRequest, method: str, path: str, origin_form: bytes) -> bool:
        route = habit.route
        if not route.admits_method(method):
            return False
        try:
            if not route.admits_path(canonical_path(path)):
                return False
        except BadPath:
            return False
        return (
            not habit.searched or habit.search.scanner.kind_in_quoted(self._url_start + origin_form) is None
        )

    # --- the answer

    def _take_answer(self, data: bytes) -> None:
        upstream, client, proxy, habit = self._upstream, self._client, self._proxy, self._habit
        assert upstream is not None and habit is not None  # noqa: S101
        if upstream.unsent:  # it cannot know what is asked: the task asks somebody else
            upstream.unsent = b""
            upstream.reject_unexpected_data(data)
            client.bell.ring()
            return
        answer = self._whole_answer(data)
        if answer is None or self._is_cut:
            self._gave_up = True
            upstream.stop_draining(data)
            client.bell.ring()
            return
        head, sent = answer.raw, answer.sent
        proxy.write_batch.put(client, data if head == sent else sent + data[len(head) :])
        self._upstream = None
        self._bottle.flows.discard(self)
        record = self._record(habit, answer.status, answer.length, (perf_counter() - self._clock) * 1000)
        if not habit.searched:
            conceal(proxy.scanners.search(self._bottle), record)
        proxy.records.add(record)
        if answer.keeps_alive and not upstream.ended:
            self._bottle.pool.give_back(habit.key, upstream)
        else:
            upstream.close()
        client.deadline = client.clock() + self._limits.keep_alive_seconds
        if client.buffer or client.ended or proxy.stopping:
            client.bell.ring()

    def _record(
        self, habit: CachedRequest, status: int = 0, length: int = 0, first_byte_ms: float | None = None
    ) -> Record:
        return Record(
            self._bottle.slug, self._at, self._method, "https", self._host, self._path, habit.route.host,
            habit.search.snapshot.version, "allowed", "ok", status, 0, length, first_byte_ms, 0.0,
            clock=self._clock,
        )  # fmt: skip

    def _whole_answer(self, data: bytes) -> Answer | None:
        """An answer that is in `data` from its first byte to its last, and nothing after it."""
        answer, to_head = self._answer, self._method == "HEAD"
        if answer is None or not data.startswith(answer.raw) or answer.to_head is not to_head:
            self._answer = answer = self._read_answer(data[: data.find(_END) + len(_END)], to_head=to_head)
            self._bottle.habits.of(self._host).keep_answer(answer)
        return answer if answer is not None and len(data) == answer.size else None

    def _read_answer(self, raw: bytes, *, to_head: bool) -> Answer | None:
        if not len(_END) < len(raw) <= self._limits.head_bytes:
            return None
        try:
            head = parse_response(raw, max_fields=self._limits.head_fields, to_head=to_head)
        except Refusal:
            return None
        if head.status < 200:
            return None
        sent = response_bytes(head, head.travelling, close=False)
        return Answer(raw, to_head, len(raw) + head.length, head.status, head.length, head.keeps_alive, sent)

    def hand_over(self) -> HandedOver:
        """The request under way, for the task to go on with. What came of its answer is in the buffer."""
        habit, upstream = self._habit, self._upstream
        assert habit is not None and upstream is not None  # noqa: S101
        self._upstream, self._gave_up = None, False
        upstream.sink = None
        self._bottle.flows.discard(self)
        record = self._record(habit)
        record.url_is_clean = habit.searched
        head = parse_request(self._raw, max_fields=self._limits.head_fields)
        target = inner_target(head, "https", self._host, PORTS["https"])
        return HandedOver(head, target, record, habit.route, upstream, self._is_cut)
