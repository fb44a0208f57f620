"""Responses that wait for an operator: async generators of JSON or server-sent events. No thread waits.

The proposal is committed before any of this begins; a client that disconnects loses only its wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

from django.conf import settings

from supervise.mcp.cancellation import cancellable
from supervise.mcp.dispatch import QUEUED, unavailable
from supervise.mcp.jsonrpc import (
    INTERNAL_ERROR,
    Json,
    ProtocolError,
    RequestId,
    encode,
    notification,
    result_response,
)
from supervise.mcp.protocol import McpRequest
from supervise.mcp.tool_results import call_result
from supervise.mcp.versions import PROGRESS_FIELDS_SINCE, keep_known
from supervise.proposals import queries
from supervise.proposals.outcomes import Outcome
from supervise.proposals.waiting import hub

log = logging.getLogger(__name__)

# Well below the idle limits of known clients (60 s and more) and of proxies between.
TICK_SECONDS = 40.0
SSE_KEEP_ALIVE = b": waiting for an operator\n\n"
JSON_KEEP_ALIVE = b" "  # white space before a JSON value means nothing

REQUEST_CANCELLED = -32000

Frame = Json | None  # None: a keep-alive

_waiting: Counter[int] = Counter()  # calls that wait in this process, by bottle


class _Ended:
    """Marks that one of several calls has sent its last frame."""


@dataclass(frozen=True)
class PendingCall:
    """A tool call that waits for the decision on its proposal."""

    bottle_id: int
    request: McpRequest
    request_id: RequestId
    proposal_id: str
    started: float  # by time.monotonic()
    limit_seconds: float = field(default_factory=lambda: queries.call_patience().total_seconds())
    end_with: Callable[[Json], None] | None = None  # for a single call: sends its response without its task

    @property
    def remaining(self) -> float:
        return self.started + self.limit_seconds - time.monotonic()


async def json_body(
    ready: Sequence[Json], calls: Sequence[PendingCall], *, is_batch: bool
) -> AsyncGenerator[bytes]:
    """Yield one JSON value. White space first sends the headers at once and keeps the connection open."""
    responses = list(ready)
    yield JSON_KEEP_ALIVE
    async with aclosing(_frames(calls)) as frames:
        async for frame in frames:
            if frame is None or "method" in frame:
                yield JSON_KEEP_ALIVE
            else:
                responses.append(frame)
    responses += _cancelled(calls, responses)
    yield encode(responses if is_batch else responses[0])


def _cancelled(calls: Sequence[PendingCall], responses: Sequence[Json]) -> list[Json]:
    """A cancelled request gets no response, but a JSON body must not be empty; its client ignores it."""
    answered = {response["id"] for response in responses}
    message = "The request was cancelled. Its proposal stays queued."
    return [
        ProtocolError(REQUEST_CANCELLED, message, request_id=call.request_id).as_response()
        for call in calls
        if call.request_id not in answered
    ]


async def sse_body(ready: Sequence[Json], calls: Sequence[PendingCall]) -> AsyncGenerator[bytes]:
    for response in ready:
        yield sse_event(response)
    if calls:
        yield SSE_KEEP_ALIVE
    async with aclosing(_frames(calls)) as frames:
        async for frame in frames:
            yield SSE_KEEP_ALIVE if frame is None else sse_event(frame)


def sse_event(message: Json) -> bytes:
    return b"event: message\ndata: " + encode(message) + b"\n\n"


async def then(body: AsyncGenerator[bytes], done: Callable[[bool], None]) -> AsyncIterator[bytes]:
    """Yield the body, then call `done` with True if all of it was sent, with False if the client left."""
    complete = False
    try:
        async with aclosing(body):
            async for chunk in body:
                yield chunk
        complete = True
    finally:
        asyncio.get_running_loop().call_soon(done, complete)  # after the client's last bytes


async def _frames(calls: Sequence[PendingCall]) -> AsyncGenerator[Frame]:
    """Yield progress, keep-alives and the final response of every call as they come."""
    if len(calls) == 1:
        async with aclosing(one_call(calls[0])) as frames:
            async for frame in frames:
                yield frame
        return
    queue: asyncio.Queue[Frame | _Ended] = asyncio.Queue()
    pumps = [asyncio.ensure_future(_pump(call, queue)) for call in calls]
    try:
        running = len(pumps)
        while running:
            item = await queue.get()
            if isinstance(item, _Ended):
                running -= 1
            else:
                yield item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(call: PendingCall, queue: asyncio.Queue[Frame | _Ended]) -> None:
    try:
        async with aclosing(one_call(call)) as frames:
            async for frame in frames:
                queue.put_nowait(frame)
    finally:
        queue.put_nowait(_Ended())


async def one_call(call: PendingCall) -> AsyncGenerator[Frame]:
    try:
        async with aclosing(_wait(call)) as frames:
            async for frame in frames:
                yield frame
    except Exception as error:
        log.exception("A waiting call failed; its proposal %s stays as it is.", call.proposal_id)
        failure = unavailable(error, None, unknown=QUEUED) or ProtocolError(
            INTERNAL_ERROR, "Internal error. Call check-proposal to see where it stands."
        )
        failure.request_id = call.request_id
        yield failure.as_response()


async def _wait(call: PendingCall) -> AsyncGenerator[Frame]:
    """Register first, then read the row: then a decision between the two is seen by the read."""
    ticks = 0
    yield _progress(call, ticks)
    async with hub.waiter(call.proposal_id) as waiter:
        with (
            _counted(call.bottle_id) as has_room,
            cancellable(call.bottle_id, call.request_id, waiter) as cancellation,
        ):
            waiter.answer_at_once = _ending(call)
            outcome = await queries.aoutcome(call.proposal_id)
            while has_room and not (
                outcome.is_final or hub.draining or cancellation.cancelled or call.remaining <= 0
            ):
                waiter.last_read = outcome
                woken = await waiter.wait(min(_until_tick(), call.remaining))
                waiter.last_read = None
                if not woken and call.remaining > 0:
                    ticks += 1
                    yield _progress(call, ticks)
                    continue
                outcome = waiter.outcome or await _outcome(call.proposal_id, last_known=outcome)
    if outcome.is_final or not cancellation.cancelled:
        yield _response(call, outcome)


def _response(call: PendingCall, outcome: Outcome) -> Json:
    return result_response(call.request_id, call_result(outcome, version=call.request.version))


def _ending(call: PendingCall) -> Callable[[Outcome], None] | None:
    end_with = call.end_with
    return None if end_with is None else lambda outcome: end_with(_response(call, outcome))


async def _outcome(proposal_id: str, *, last_known: Outcome) -> Outcome:
    """Read again, but not while the server stops: reading for thousands of calls would take too long."""
    return last_known.at_the_stop() if hub.draining else await queries.aoutcome(proposal_id)


@contextmanager
def _counted(bottle_id: int) -> Iterator[bool]:
    """Yield False for a call over the limit, which does not wait: equal asks share a proposal, but each wait
    costs.
    """
    _waiting[bottle_id] += 1
    try:
        yield _waiting[bottle_id] <= settings.SUPERVISE_MAX_WAITING
    finally:
        _waiting[bottle_id] -= 1
        if not _waiting[bottle_id]:
            del _waiting[bottle_id]


def _until_tick() -> float:
    """Align the ticks of all calls, so that the loop wakes once for many of them."""
    return TICK_SECONDS - time.monotonic() % (TICK_SECONDS / 100)


def _progress(call: PendingCall, ticks: int) -> Frame:
    """A progress frame. `progress` counts ticks, so it always increases; the total is unknown."""
    token = call.request.progress_token
    if token is None:
        return None
    waited = round(ticks * TICK_SECONDS)
    message = (
        f"Waiting for an operator to decide ({waited} s)." if ticks else "Queued for an operator to decide."
    )
    params = {"progressToken": token, "progress": ticks, "message": message}
    return notification(
        "notifications/progress", keep_known(params, PROGRESS_FIELDS_SINCE, call.request.version)
    )
