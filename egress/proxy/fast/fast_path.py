"""The fast path: a simple request inside an inspected connection is served where it arrives, without a task.

Trust boundary: it lets nothing out by itself. The session parses, decides on and searches every request, and
whatever is out of the ordinary, on either side, is left to the session's task.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from egress.policy.decide import Request
from egress.policy.routes import Route
from egress.proxy.errors import Gone, Refusal
from egress.proxy.fast.write_batch import WriteBatch
from egress.proxy.http.heads import RequestHead, parse_response
from egress.proxy.http.writer import response_bytes
from egress.proxy.net.connection import Connection
from egress.proxy.request.client_session import ClientSession
from egress.proxy.request.origin import Origin
from egress.proxy.state.bottle import BottleState
from egress.proxy.state.connection_limits import LONG_HEAD
from egress.proxy.state.proxy import Proxy

_END = b"\r\n\r\n"
_METHODS = (b"GET ", b"HEAD ", b"OPTIONS ")  # repeatable, and without a body
_LONGEST_CACHED = 2048


class FastPath:
    """A flow, while a request is under way."""

    tunnelled = False

    def __init__(
        self, proxy: Proxy, batch: WriteBatch, session: ClientSession, client: Connection, bottle: BottleState
    ) -> None:
        self._proxy = proxy
        self._batch = batch
        self._session = session
        self._client = client
        self._bottle = bottle
        self.is_busy = False
        self._origin: Origin | None = None  # where the request may go
        self._upstream: Connection | None = None  # what it was sent on
        self._failure: Exception | None = None  # why it may not go anywhere
        self._is_declined = False
        self._is_cut = False

    @property
    def request(self) -> Request:
        return self._admitted.request

    @property
    def route(self) -> Route:
        return self._admitted.route

    @property
    def _admitted(self) -> Origin:
        assert self._origin is not None  # noqa: S101
        return self._origin

    @property
    def _head(self) -> RequestHead:
        head = self._session.request.head
        assert head is not None  # noqa: S101
        return head

    @property
    def is_stuck(self) -> bool:
        upstream, client = self._upstream, self._client
        return upstream is None or (
            self._is_declined or self._is_cut or upstream.ended or client.ended or client.expired
        )

    def cut(self) -> None:
        self._is_cut = True
        self._client.abort()
        if self._upstream is not None:
            self._upstream.abort()
        self._client.bell.ring()

    # --- the request

    def take(self, data: bytes) -> bool:
        client = self._client
        if self.is_busy or client.buffer or client.choked or client.expired or self._proxy.stopping:
            return False
        if len(data) > LONG_HEAD or not data.startswith(_METHODS) or data.find(_END) != len(data) - len(_END):
            return False
        self.is_busy = True
        try:
            self._origin = origin = self._session.admit(data)
            self._upstream = self._upstream_for(origin)
        except Exception as error:  # the task answers it, or logs it
            self._failure = error
        if self._upstream is None:
            client.bell.ring()
            return True
        self._session.request.note_allowed()
        self._bottle.flows.add(self)
        client.deadline = client.clock() + self._proxy.limits.response_seconds
        self._upstream.sink = self._take_answer
        self._batch.put(self._upstream, origin.request_head(self._head))
        return True

    def _upstream_for(self, origin: Origin) -> Connection | None:
        head = self._head
        if not origin.route.is_cacheable or head.length or b"upgrade" in head.single or not head.keeps_alive:
            return None
        return origin.reuse(self._client, repeatable=True)

    def release(self) -> tuple[Origin, Connection | None]:
        failure, upstream = self._failure, self._upstream
        self.is_busy = self._is_declined = False
        self._failure = self._upstream = None
        self._bottle.flows.discard(self)
        if failure is not None:
            raise failure
        if upstream is not None:
            upstream.sink = None
            if self._is_cut:
                upstream.abort()
                raise Gone("cut")
        return self._admitted, upstream

    # --- the answer

    def _take_answer(self, data: bytes) -> None:
        upstream, client, session, origin = self._upstream, self._client, self._session, self._origin
        assert upstream is not None and origin is not None  # noqa: S101
        if upstream.unsent:  # it cannot know what is asked: the task asks somebody else
            upstream.unsent = b""
            upstream.reject_unexpected_data(data)
            client.bell.ring()
            return
        answer = self._whole_answer(data)
        if answer is None or self._is_cut:
            self._is_declined = True
            upstream.stop_draining(data)
            client.bell.ring()
            return
        self._batch.put(client, answer.sent + data[len(data) - answer.length :])
        session.request.record.answered(answer.status)
        session.request.record.bytes_in = answer.length
        self.is_busy, self._upstream = False, None
        self._bottle.flows.discard(self)
        session.end_request()
        if answer.keeps_alive and not upstream.ended:
            origin.return_connection(upstream)
        else:
            upstream.close()
        client.deadline = client.clock() + self._proxy.limits.keep_alive_seconds
        if client.buffer or client.ended or self._proxy.stopping:
            client.bell.ring()

    def _whole_answer(self, data: bytes) -> _Answer | None:
        """An answer that is in `data` from its first byte to its last, and nothing after it."""
        limits = self._proxy.limits
        raw = data[: data.find(_END) + len(_END)]
        if not len(_END) < len(raw) <= limits.head_bytes:
            return None
        read = _cached_answer if len(raw) <= _LONGEST_CACHED else _read_answer
        answer = read(raw, limits.head_fields, self._head.method == "HEAD")
        return answer if answer is not None and len(data) == len(raw) + answer.length else None


class _Answer(NamedTuple):
    """The head of an answer: what it says, and what is sent in its place."""

    status: int
    length: int
    keeps_alive: bool
    sent: bytes


def _read_answer(raw: bytes, max_fields: int, to_head: bool) -> _Answer | None:
    """None for what the task has to judge."""
    try:
        head = parse_response(raw, max_fields=max_fields, to_head=to_head)
    except Refusal:
        return None
    if head.status < 200:
        return None
    sent = response_bytes(head, head.travelling, close=False)
    return _Answer(head.status, head.length, head.keeps_alive, sent)


# An origin's heads are often the same. They depend on nothing but their bytes, so nothing makes them stale.
_cached_answer = lru_cache(maxsize=512)(_read_answer)
