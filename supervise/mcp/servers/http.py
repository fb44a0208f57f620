"""`/mcp/servers/<name>` on the agent plane: Streamable HTTP to the stdio of a bottle's MCP server, in both
eras.

Only an authenticated bottle gets here, and only its own servers have names. No thread waits while a call
runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from asgiref.sync import sync_to_async
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from botbottle.mcp_servers.monitor import Phase, error_of
from botbottle.models import Bottle
from supervise.bottles import mcp_servers
from supervise.errors import SuperviseError
from supervise.kinds import mcp_tool
from supervise.mcp import cancellation, http_checks, streams, tool_results
from supervise.mcp.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Envelope,
    Json,
    ProtocolError,
    RequestId,
    encode,
)
from supervise.mcp.protocol import McpRequest, parse
from supervise.mcp.servers.link import Link, LinkFailed, linked, unknown
from supervise.mcp.streams import REQUEST_CANCELLED as CANCELLED
from supervise.mcp.streams import TICK_SECONDS, Frame, PendingCall, sse_event
from supervise.mcp.versions import LIST_TTL_MS, MODERN_VERSIONS, Era
from supervise.mcp.views import AgentView, addressed, read_body, stream_response
from supervise.models import Proposal
from supervise.proposals import queries
from supervise.proposals.waiting import hub

CALL_SECONDS = 3600.0
RESERVED = "io.modelcontextprotocol/"  # keys of _meta between the client and this server
KEEP_ALIVE = b": the server works on it\n\n"
USED = "The approval was used by another call of yours. Call again to ask again."


@dataclass(frozen=True)
class Call:
    """One request of a client. `proposal_id` is set if an operator must approve it first."""

    bottle: Bottle
    server: str
    request: McpRequest
    proposal_id: str | None = None

    @property
    def modern(self) -> bool:
        return self.request.era is Era.MODERN


@dataclass(eq=False)
class Running:
    """A call that runs in this process, so that a notification can end it."""

    loop: asyncio.AbstractEventLoop
    incoming: asyncio.Future[Json]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True
        self.incoming.cancel()


_running: dict[tuple[int, str, RequestId | None], list[Running]] = {}


class ManagedView(AgentView):
    advice = "Send MCP messages with POST. There is no GET stream."

    def post(self, request: Request, name: str) -> HttpResponseBase:
        accepted = http_checks.accepted(request.headers)
        if name not in mcp_servers.servers_of(self.bottle):
            raise unknown(self.bottle, name)
        post = parse(read_body(request._request), request.headers)
        if post.is_batch:
            raise ProtocolError(INVALID_REQUEST, "Send one message per POST.")
        message = next(iter(post.messages), None)
        if isinstance(message, ProtocolError):
            raise message
        if (
            message is None or message.id is None
        ):  # other notifications belong to a handshake that was made once for all clients
            if message is not None and message.method == "notifications/cancelled":
                _cancel(self.bottle, name, message.params.get("requestId"))
            return HttpResponse(status=202, headers={"Content-Type": "application/json"})
        self.entry.mcp = f"{name}: {message.method}"
        try:
            self.entry.tool = tool_of(message)
        except ProtocolError as error:
            raise addressed(error, message) from error
        frames = frames_of(self.bottle, name, message, self.entry.started)
        if accepted.sse:
            return stream_response(_sse(frames), "text/event-stream", self.entry)
        return stream_response(_json(frames), "application/json", self.entry)


def tool_of(message: Envelope | McpRequest) -> str | None:
    """The called tool, or None if the message is not a call. Raises ProtocolError.

    A call that a card could not show faithfully is refused, whatever the manifest says of its tools.
    """
    if message.method != "tools/call":
        return None
    tool, arguments = message.params.get("name"), message.params.get("arguments")
    if not isinstance(tool, str):
        raise ProtocolError(INVALID_PARAMS, "params.name must be the tool's name, a string.")
    if arguments is not None and not isinstance(arguments, dict):
        raise ProtocolError(INVALID_PARAMS, "params.arguments must be an object, or left out.")
    return tool


def frames_of(bottle: Bottle, server: str, request: McpRequest, started: float) -> AsyncGenerator[Frame]:
    """Yield progress, keep-alives (None) and the response. A call that needs an operator is submitted first.

    Raises ProtocolError.
    """
    tool = tool_of(request)
    if tool is None or not mcp_servers.servers_of(bottle)[server].asks(tool):
        return _call(Call(bottle, server, request))
    arguments = request.params.get("arguments") or {}
    approved = mcp_tool.unused(bottle, server, tool, arguments)
    if approved is not None:
        return _call(Call(bottle, server, request, approved))
    try:
        asked = mcp_tool.ask(bottle, server, tool, arguments)
    except SuperviseError as error:
        return _one(_result(request, tool_results.text_result(error.message, is_error=True)))
    return _asked(Call(bottle, server, request, asked), started)


async def _one(frame: Json) -> AsyncGenerator[Frame]:
    yield frame


async def _asked(call: Call, started: float) -> AsyncGenerator[Frame]:
    """Wait as for any other ask; after an approval, make the call."""
    assert call.proposal_id is not None and call.request.id is not None  # noqa: S101
    waiting = PendingCall(
        bottle_id=call.bottle.pk,
        request=call.request,
        request_id=call.request.id,
        proposal_id=call.proposal_id,
        started=started,
    )
    async with aclosing(streams.one_call(waiting)) as frames:
        async for frame in frames:
            if frame is not None and "method" not in frame:
                break
            yield frame
        else:
            return  # cancelled: it gets no response
    if hub.draining:  # an approved call waits for the next start: now it would be cut off midway
        yield frame
        return
    outcome = await queries.aoutcome(call.proposal_id)
    if outcome.status != Proposal.Status.APPROVED:
        yield frame
        return
    async with aclosing(_call(call)) as called:
        async for frame in called:
            yield frame


async def _call(call: Call) -> AsyncGenerator[Frame]:
    """Send the request to the server and yield its responses. Uses an approval once the server is there."""
    yield None  # sends the headers at once
    try:
        async with linked(call.bottle, call.server) as link:
            outgoing = await _approved(call) if call.proposal_id else _outgoing(call)
            if outgoing is None:
                yield _result(call.request, tool_results.text_result(USED, is_error=True))
                return
            link.send(outgoing)
            async with aclosing(_until_answered(call, link)) as frames:
                async for frame in frames:
                    yield frame
    except LinkFailed as failure:
        yield failure.as_response(call.request.id)
    except ProtocolError as error:
        yield addressed(error, call.request).as_response()


async def _until_answered(call: Call, link: Link) -> AsyncGenerator[Frame]:
    deadline = time.monotonic() + CALL_SECONDS
    incoming = asyncio.ensure_future(link.receive())
    running = Running(asyncio.get_running_loop(), incoming)
    key = (call.bottle.pk, call.server, call.request.id)
    _running.setdefault(key, []).append(running)
    try:
        while time.monotonic() < deadline:
            done, _ = await asyncio.wait({incoming}, timeout=TICK_SECONDS)
            if running.cancelled:
                yield ProtocolError(CANCELLED, "Cancelled.", request_id=call.request.id).as_response()
                return
            if not done:
                yield None
                continue
            message = incoming.result()
            if "method" not in message:
                yield _incoming(call, message)
                return
            yield message
            incoming = running.incoming = asyncio.ensure_future(link.receive())
        late = error_of(Phase.TOOL_CALL, f"The server did not answer within {CALL_SECONDS:g} s.")
        yield {"jsonrpc": "2.0", "id": call.request.id, "error": late}
    finally:
        _running[key].remove(running)
        if not _running[key]:
            del _running[key]
        if running.cancelled or (call.modern and not incoming.done()):  # in that era, disconnecting cancels
            cancelled = {"requestId": call.request.id, "reason": "the client went away"}
            link.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
        incoming.cancel()


def _cancel(bottle: Bottle, server: str, request_id: object) -> None:
    """Cancel a call, from any thread. If two calls have the same id, neither ends."""
    if isinstance(request_id, bool) or not isinstance(request_id, (str, int)):
        return
    found = _running.get((bottle.pk, server, request_id), [])
    if len(found) == 1:
        found[0].loop.call_soon_threadsafe(found[0].cancel)
    else:
        cancellation.cancel(bottle.pk, request_id)  # it may still wait for an operator


async def _approved(call: Call) -> Json | None:
    """Exactly the call that the operator was shown, with the progress token. None if it was used up."""
    shown = await sync_to_async(mcp_tool.claim, thread_sensitive=True)(str(call.proposal_id))
    if shown is None:
        return None
    params: Json = {"name": shown["tool"], "arguments": shown["arguments"]}
    meta = call.request.params.get("_meta")
    if isinstance(meta, dict) and meta.get("progressToken") is not None:
        params["_meta"] = {"progressToken": meta["progressToken"]}  # replaced on the way
    return {"jsonrpc": "2.0", "id": call.request.id, "method": "tools/call", "params": params}


def _outgoing(call: Call) -> Json:
    """The request for the server, which speaks the handshake era whatever its client speaks."""
    method, params = call.request.method, dict(call.request.params)
    if call.modern:
        if method == "server/discover":
            method, params = "initialize", {}
        elif method in ("initialize", "tasks/get", "tasks/update", "tasks/cancel"):
            raise ProtocolError(METHOD_NOT_FOUND, f"Unknown method {method}.")
        meta = params.get("_meta")
        if isinstance(meta, dict):
            params["_meta"] = {key: value for key, value in meta.items() if not key.startswith(RESERVED)}
    return {"jsonrpc": "2.0", "id": call.request.id, "method": method, "params": params}


def _incoming(call: Call, message: Json) -> Json:
    result = message.get("result")
    if not call.modern or not isinstance(result, dict):
        return message
    if call.request.method == "server/discover":
        result = {key: result[key] for key in ("capabilities", "instructions") if key in result}
        result = {"supportedVersions": list(MODERN_VERSIONS), **result}
    if call.request.method.endswith(("/list", "/discover", "resources/read")):
        result = {"ttlMs": 0 if call.request.method == "resources/read" else LIST_TTL_MS, **result}
        result = {"cacheScope": "private", **result}
    return _result(call.request, result)


def _result(request: McpRequest, result: Json) -> Json:
    if request.era is Era.MODERN:
        result = {"resultType": "complete", **result}
    return {"jsonrpc": "2.0", "id": request.id, "result": result}


async def _sse(frames: AsyncGenerator[Frame]) -> AsyncGenerator[bytes]:
    async with aclosing(frames):
        async for frame in frames:
            yield KEEP_ALIVE if frame is None else sse_event(frame)


async def _json(frames: AsyncGenerator[Frame]) -> AsyncGenerator[bytes]:
    async with aclosing(frames):
        async for frame in frames:
            yield streams.JSON_KEEP_ALIVE if frame is None or "method" in frame else encode(frame)
