"""One admitted request and its answer, streamed both ways with back-pressure, to the last byte.

Trust boundary: the bottle on one side, the origin on the other, neither believed about where a message ends.
"""

from __future__ import annotations

from collections.abc import Generator

from egress.dlp.scanner import Steps
from egress.proxy.config import Limits
from egress.proxy.errors import BadAnswer, BadRequest, Gone, Refusal, Unreachable
from egress.proxy.http.body import ChunkedBody, body_of, chunk, last_chunk, payloads
from egress.proxy.http.heads import CHUNKED, UNTIL_CLOSE, RequestHead, ResponseHead, parse_response
from egress.proxy.http.reader import read_body
from egress.proxy.http.websocket_upgrade import is_valid_upgrade
from egress.proxy.http.writer import UPGRADE, response_bytes
from egress.proxy.net.connection import Connection
from egress.proxy.net.fair_scheduler import result
from egress.proxy.request.destination import Destination, Trailers
from egress.proxy.request.upgraded import Upgraded, discard
from egress.proxy.state.records import Record

REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS"})
_INTERIM = frozenset({100, 102, 103})
_MOST_INTERIM = 32  # some servers say 102 every so often while they work


class Exchange:
    """A flow. Raises Refusal when an answer can still be given, Gone when not."""

    tunnelled = False

    def __init__(
        self,
        client: Connection,
        head: RequestHead,
        destination: Destination,
        limits: Limits,
        record: Record,
        *,
        sent_on: Connection | None = None,
    ) -> None:
        self.request = destination.request
        self.route = destination.route
        self._client = client
        self._head = head
        self._destination = destination
        self._inspected = destination.inspected
        self._limits = limits
        self._record = record
        self._upstream = sent_on  # set when the request was sent already
        self._body = body_of(head.length)
        self._sent_all = self._body.finished  # even if the body is still being searched
        self._answer_body = body_of(0)
        self._answered_all = False
        self._failure: Refusal | None = None
        self._ready = b""  # what may leave as soon as there is a connection
        self._cut = False
        self._unsent = b""  # the head of the answer, until its first bytes go with it
        self._started = False  # a final answer is on its way to the client
        self._patience = limits.response_seconds

    def cut(self) -> None:
        self._cut = True
        self._client.abort()
        if self._upstream is not None:
            self._upstream.abort()
        self._client.bell.ring()

    @property
    def left_a_body(self) -> bool:
        """Whether the client may still be sending: an answer can come before the end of the request."""
        return not self._sent_all

    async def run(self) -> bool:
        """True when the client's connection can carry another request."""
        reusable = False
        try:
            self._touch()
            answer = await self._final_answer()
            if answer.status == 101:
                await self._upgrade(answer)
                return False
            reusable = await self._relay(answer)
            return reusable
        except (Refusal, Gone) as end:
            if self._cut:
                raise Gone("cut") from end
            if self._started:
                raise Gone(end.reason) from end
            raise
        finally:
            self._inspected.release()
            self._client.drop_sink()
            self._client.feed_from(None)
            if self._upstream is not None and not reusable:
                self._upstream.drop_sink()
                self._upstream.abort()

    # --- the request

    async def _final_answer(self) -> ResponseHead:
        if self._inspected.needs_whole_body and self._head.length:
            await self._read_whole()
        elif self._inspected.reads_ahead and b"expect" not in self._head.single:
            await self._read_ahead()
        repeatable = self._head.method in REPEATABLE and self._head.length == 0
        kept = self._upstream or self._destination.reuse(self._client, repeatable=repeatable)
        if kept is not None:
            if self._upstream is None:
                self._send(kept)
            try:
                return await self._await_answer(kept)
            except Unreachable as error:
                if not repeatable or error.reason != "upstream-closed" or kept.buffer:
                    raise
        fresh = await self._destination.open(self._client)
        self._send(fresh)
        return await self._await_answer(fresh)

    async def _read_whole(self) -> None:
        inspected, begin = self._inspected, self._destination.begin
        body = await read_body(self._client, self._head, self._limits, inspected.reserve, begin)
        self._touch()
        self._head = self._head.with_length(len(body))
        self._sent_all = True
        inspected.take_body(self._head, body)
        self._ready = await self._in_turn(inspected.outgoing(body, last=True))
        self._record.bytes_out += len(self._ready)

    async def _read_ahead(self) -> None:
        """Read and search a small body whole, before an origin hears of the request."""
        client = self._client
        while not (self._sent_all or self._ready):
            if client.buffer:
                await self._in_turn(self._take_request_data(client.take(len(client.buffer))))
                if self._failure is not None:
                    raise self._failure
            else:
                self._check()
                await client.bell.wait()

    def _send(self, upstream: Connection) -> None:
        self._upstream = upstream
        self._check()  # the route may have been revoked while the body was read
        if upstream.buffer:
            raise BadAnswer("The origin sent an answer before it was asked.")
        upstream.write(self._destination.request_head(self._head) + self._ready)
        self._ready = b""
        if not self._sent_all:
            upstream.feed_from(self._client)
            self._client.drain_into(self._take_request_data, self._destination.begin)

    async def _in_turn(self, work: Steps) -> bytes:
        """The result of the work. Raises Gone when this exchange was cut meanwhile."""
        found = await result(work, self._destination.begin)
        if self._cut:
            raise Gone
        return found

    def _take_request_data(self, data: bytes) -> Steps:
        """Take data from the client on arrival. A failure is left to the task, which answers it."""
        trailers: Trailers = []
        leaving: list[bytes] = []
        try:
            for payload in payloads(data, self._body):
                self._touch()
                if payload or self._body.finished:
                    leaving.append((yield from self._inspected.outgoing(payload, last=self._body.finished)))
                yield
            if isinstance(self._body, ChunkedBody) and self._body.finished:
                trailers = self._inspected.trailers(self._body.trailers, leaving=True)
        except Refusal as refusal:
            self._fail(self._client, refusal)
            return b""
        except ValueError as error:
            self._fail(self._client, BadRequest("bad-body", f"The request was refused: {error}."))
            return b""
        payload = b"".join(leaving)
        self._record.bytes_out += len(payload)
        if self._head.length == CHUNKED:
            payload = chunk(payload) if payload else b""
            if self._body.finished:
                payload += last_chunk(trailers)
        if self._upstream is None:
            self._ready += payload
        elif payload:
            self._upstream.write(payload)
        if self._body.finished:
            self._sent_all = True
            self._client.stop_draining(self._body.rest)
            self._client.bell.ring()
        return b""

    def _fail(self, source: Connection, refusal: Refusal) -> None:
        self._failure = refusal
        source.sink = discard
        self._client.bell.ring()

    # --- the answer

    async def _await_answer(self, upstream: Connection) -> ResponseHead:
        for _ in range(_MOST_INTERIM + 1):
            answer = await self._next_answer(upstream)
            if answer.status >= 200:
                return answer
            if answer.status == 101:
                if not is_valid_upgrade(self._head, answer):
                    raise BadAnswer("The origin switched protocols without being asked to.")
                return answer
            if answer.status not in _INTERIM:
                raise BadAnswer("The origin sent an interim answer that this proxy does not know.")
            fields = self._destination.answer_fields(answer)
            self._client.write(response_bytes(answer, fields, close=False))
            while self._client.choked:  # nothing holds the origin back yet
                self._check()
                await self._client.bell.wait()
        raise BadAnswer("The origin sent one interim answer after another.")

    async def _next_answer(self, upstream: Connection) -> ResponseHead:
        while (answer := self._head_in(upstream)) is None:
            self._check()
            if upstream.ended:
                raise Unreachable("upstream-closed", "The origin closed the connection without an answer.")
            await self._client.bell.wait()
        return answer

    def _head_in(self, upstream: Connection) -> ResponseHead | None:
        """The next head of the answer, or None when it is not here yet. Raises BadAnswer."""
        most = self._limits.head_bytes
        end = upstream.buffer.find(b"\r\n\r\n")
        if 0 <= end <= most:
            raw = upstream.take(end + 4)
            to_head = self._head.method == "HEAD"
            return parse_response(raw, max_fields=self._limits.head_fields, to_head=to_head)
        if len(upstream.buffer) > most:
            raise BadAnswer("The origin's answer has too large a head.")
        return None

    async def _relay(self, answer: ResponseHead) -> bool:
        """Send the answer on. True when the client's connection can be used again."""
        upstream = self._upstream
        assert upstream is not None  # noqa: S101
        keep = self._head.keeps_alive and answer.length != UNTIL_CLOSE and self._sent_all
        fields = self._destination.answer_fields(answer)
        self._record.answered(answer.status)
        if 0 <= answer.length <= len(upstream.buffer):  # all of it is here, as with most answers
            payload = upstream.take(answer.length)
            if payload:
                payload = await self._in_turn(self._inspected.incoming(payload, last=True))
                self._record.bytes_in += len(payload)
            self._client.write(response_bytes(answer, fields, close=not keep) + payload)
            return self._finish(upstream, answer, keep)
        self._started = True
        self._patience = self._limits.idle_seconds
        self._answer_body = body_of(answer.length)
        self._answered_all = self._answer_body.finished
        self._unsent = response_bytes(answer, fields, close=not keep)
        if not self._answered_all:
            self._client.feed_from(upstream)
            # Small answers leave in one piece with their head.
            if self._inspected.passes_on and not isinstance(self._answer_body, ChunkedBody):
                upstream.drain_into(self._pass_on)
            else:
                upstream.drain_into(self._take_answer_data, self._destination.begin)
        if self._failure is not None:
            self._started = not self._unsent
            raise self._failure
        self._client.write(self._unsent)
        self._unsent = b""
        if not self._answered_all:
            await self._until_answered(upstream)
        return self._finish(upstream, answer, keep)

    def _pass_on(self, data: bytes) -> None:
        """Send on a body that is only counted, which is too little work to take turns for."""
        self._touch()
        payload = self._answer_body.feed(data)
        self._record.bytes_in += len(payload)
        self._client.write(self._unsent + payload)
        self._unsent = b""
        if self._answer_body.finished:
            self._end_answer()

    def _take_answer_data(self, data: bytes) -> Generator[None, None, None]:
        body, upstream = self._answer_body, self._upstream
        assert upstream is not None  # noqa: S101
        try:
            for payload in payloads(data, body):
                self._touch()
                yield from self._send_answer(payload, last=body.finished)
        except ValueError:
            self._fail(upstream, BadAnswer("The origin's answer has a malformed body."))
        except Refusal as refusal:
            self._fail(upstream, refusal)
        else:
            if body.finished:
                self._end_answer()

    def _end_answer(self) -> None:
        assert self._upstream is not None  # noqa: S101
        self._answered_all = True
        self._upstream.stop_draining(self._answer_body.rest)
        self._client.bell.ring()

    def _send_answer(self, payload: bytes, *, last: bool) -> Steps:
        payload = yield from self._inspected.incoming(payload, last=last)
        self._record.bytes_in += len(payload)
        if isinstance(self._answer_body, ChunkedBody):
            payload = chunk(payload) if payload else b""
            if last:
                payload += last_chunk(self._inspected.trailers(self._answer_body.trailers, leaving=False))
        if payload:
            self._client.write(self._unsent + payload)
            self._unsent = b""
        yield
        return b""

    async def _until_answered(self, upstream: Connection) -> None:
        while not self._answered_all:
            self._check()
            if upstream.ended:
                try:
                    self._answer_body.end()
                except ValueError as error:
                    raise Unreachable(
                        "upstream-closed", "The origin closed the connection before the end of its answer."
                    ) from error
                await self._in_turn(self._send_answer(b"", last=True))
                if upstream.broke_off:  # the client should see the same end as we did
                    self._record.reason = "upstream-closed"
                    self._client.close_abruptly()
                return
            await self._client.bell.wait()
        if self._failure is not None:  # it came with the last bytes
            raise self._failure

    def _finish(self, upstream: Connection, answer: ResponseHead, keep: bool) -> bool:
        if self._cut:  # the last bytes did not arrive
            raise Gone
        self._client.feed_from(None)
        upstream.feed_from(None)
        if keep and answer.keeps_alive and not upstream.buffer and not upstream.ended:
            self._destination.return_connection(upstream)
        else:
            upstream.close()
        self._upstream = None
        return keep

    async def _upgrade(self, answer: ResponseHead) -> None:
        upstream = self._upstream
        assert upstream is not None  # noqa: S101
        switching = [
            *self._destination.answer_fields(answer),
            *UPGRADE,
        ]  # raises when there is no memory to inspect it
        self._started = True
        self._record.answered(101)
        self._client.write(response_bytes(answer, switching, close=False))
        await Upgraded(self._client, upstream, self._destination, self._limits, self._record).run(self._check)
        if self._cut:
            raise Gone
        self._upstream = None

    # --- deadlines and ends

    def _touch(self) -> None:
        self._client.deadline = self._client.clock() + self._patience

    def _check(self) -> None:
        if self._cut or self._client.ended or self._client.closed:
            raise Gone
        if self._failure is not None:
            raise self._failure
        if self._client.expired:
            self._client.expired = False
            if self._started:  # perhaps the client does not read
                raise Gone("idle")
            if self._sent_all:
                raise Unreachable("upstream-timeout", "The origin took too long to answer.", 504)
            raise BadRequest("timeout", "The rest of the request did not come in time.", 408)
