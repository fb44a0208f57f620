"""The same methods without MCP's envelope: `POST /rpc` for programs, `GET /session-context` for hosts.

Only authenticated bottles get here; bodies and queries are an agent's, unchecked.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any
from uuid import uuid4

from django.core.exceptions import SuspiciousOperation
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from supervise.mcp import streams
from supervise.mcp.dispatch import SESSION_CONTEXT, Done, dispatch
from supervise.mcp.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, Json, ProtocolError, decode, encode
from supervise.mcp.protocol import McpRequest
from supervise.mcp.streams import PendingCall
from supervise.mcp.versions import NEWEST_HANDSHAKE, Era, http_status
from supervise.mcp.views import AgentView, json_response, read_body, stream_response
from supervise.models import Proposal

VERSION = NEWEST_HANDSHAKE  # its results are plain, without protocol fields
CONTEXT_PARAMETERS = ("format", "depth", "session_id")


class BareView(AgentView):
    """Answers `{"result": …}` or `{"error": {"code", "message"}}`, the error with its HTTP status."""

    def refusal(self, error: ProtocolError) -> Json:
        return bare(error.as_response())

    def serve(self, method: str, params: Mapping[str, Any]) -> Done | Proposal:
        self.entry.mcp = method
        name = params.get("name")
        self.entry.tool = name if method == "tools/call" and isinstance(name, str) else None
        try:
            return dispatch(self.bottle, method, params, version=VERSION)
        except ProtocolError as error:
            error.http_status = http_status(error.code, Era.MODERN)
            raise


class RpcView(BareView):
    advice = 'Send {"method": …, "params": {…}} with POST.'

    def post(self, request: Request) -> HttpResponseBase:
        method, params = read_call(read_body(request._request))
        answer = self.serve(method, params)
        if isinstance(answer, Done):
            return json_response({"result": answer.result}, 200)
        call = PendingCall(
            bottle_id=self.bottle.pk,
            request=McpRequest(Era.HANDSHAKE, VERSION, method, params),
            request_id=f"rpc {uuid4()}",  # unique: no MCP client can cancel this call by using the same id
            proposal_id=str(answer.pk),
            started=self.entry.started,
        )
        return stream_response(_bare_body(call), "application/json", self.entry)


class ContextView(BareView):
    """For hosts without a push channel: they fetch this when a session begins."""

    http_method_names = ["get", "head"]
    allow = "GET, HEAD"
    advice = "Read the session context with GET."

    def get(self, request: Request) -> HttpResponse:
        answer = self.serve(SESSION_CONTEXT, _query(request))
        assert isinstance(answer, Done)  # noqa: S101 - reading never needs a decision
        if (text := answer.result.get("text")) is not None:
            return HttpResponse(text, content_type="text/plain; charset=utf-8")
        return json_response(answer.result, 200)


def read_call(body: bytes) -> tuple[str, Json]:
    """Parse the body of a call. Raises ProtocolError. Pure."""
    value = decode(body)
    if not isinstance(value, dict) or not set(value) <= {"method", "params"}:
        raise ProtocolError(
            INVALID_REQUEST, 'Send {"method": …, "params": {…}} and nothing else. JSON-RPC goes to POST /mcp.'
        )
    method, params = value.get("method"), value.get("params")
    if not isinstance(method, str) or not method:
        raise ProtocolError(INVALID_REQUEST, "method must be a non-empty string.")
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise ProtocolError(INVALID_PARAMS, "params must be an object.")
    return method, params


def bare(response: Mapping[str, Any]) -> Json:
    """A JSON-RPC response without its envelope."""
    return {key: value for key, value in response.items() if key not in ("jsonrpc", "id")}


def _query(request: Request) -> Json:
    """The query's parameters. Repeated ones are refused, because readers disagree on which one counts."""
    try:
        query = request.query_params
    except SuspiciousOperation:  # Django limits their number
        raise ProtocolError(INVALID_REQUEST, "The query has too many parameters. Send fewer.") from None
    for name in CONTEXT_PARAMETERS:
        if len(query.getlist(name)) > 1:
            raise ProtocolError(INVALID_PARAMS, f"{name} is there twice. Send it once.")
    return {name: query[name] for name in CONTEXT_PARAMETERS if name in query}


async def _bare_body(call: PendingCall) -> AsyncGenerator[bytes]:
    async with aclosing(streams.json_body((), (call,), is_batch=False)) as chunks:
        async for chunk in chunks:
            yield chunk if chunk == streams.JSON_KEEP_ALIVE else encode(bare(json.loads(chunk)))
