"""The agent plane over HTTP. Views are synchronous and short: check, authenticate, read, insert; then streams
wait.

Only an authenticated bottle gets past `initial`; no internal failure is revealed to it.
"""

from __future__ import annotations

import logging
from asyncio import get_running_loop
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, cast

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.exceptions import APIException, MethodNotAllowed
from rest_framework.request import Request
from rest_framework.views import APIView

from botbottle.database.faults import Changes
from botbottle.models import Bottle
from botbottle.web.access_log import AccessEntry
from botbottle.web.bottle_auth import BottleAuthentication
from botbottle.web.middleware import changes_of
from botbottle.web.owners import proven_tokens
from supervise.mcp import http_checks, streams
from supervise.mcp.cancellation import cancel
from supervise.mcp.dispatch import Done, Unavailable, dispatch, unavailable
from supervise.mcp.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    Json,
    ProtocolError,
    encode,
    result_response,
)
from supervise.mcp.protocol import McpRequest, Post, parse
from supervise.mcp.streams import PendingCall
from supervise.mcp.versions import Era, http_status

log = logging.getLogger(__name__)


class AgentView(APIView):
    """The base of all endpoints for authenticated bottles: checks, errors, and the line in the log."""

    authentication_classes = [BottleAuthentication]
    permission_classes = []
    parser_classes = []
    renderer_classes = []
    http_method_names = ["post"]
    allow = "POST"
    advice = ""  # for clients that use another method
    schema = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Replaces DRF's checks: no content negotiation, and cheap refusals before the database."""
        self.entry = AccessEntry(request.method or "", request.path)
        if (request.method or "").lower() not in self.http_method_names:
            raise MethodNotAllowed(request.method or "", self.advice)
        http_checks.check_host(request.headers, settings.SUPERVISE_BIND, settings.SUPERVISE_HOSTS)
        http_checks.check_origin(request.headers, settings.SUPERVISE_BIND, settings.SUPERVISE_HOSTS)
        self.bottle = self._authenticated(request)
        self.entry.bottle = self.bottle.slug
        if request.method == "POST":
            http_checks.check_length(request.headers, settings.SUPERVISE_MAX_BODY_BYTES)
            http_checks.check_content_type(request.headers)

    def _authenticated(self, request: Request) -> Bottle:
        """Authenticate the bottle. Its token is remembered, so that its requests get a fair share of their
        own.
        """
        authorization = request.headers.get("Authorization", "")
        try:
            self.perform_authentication(request)
        except APIException:
            proven_tokens.forget(authorization)
            raise
        bottle = cast(Bottle, request.user)
        if request.auth == "token":
            proven_tokens.remember(authorization, bottle.slug)
        return bottle

    def refusal(self, error: ProtocolError) -> Json:
        """The body of an error response."""
        return error.as_response()

    # DRF's stubs want its own Response from the next two; any HttpResponse serves.
    def handle_exception(self, exc: Exception) -> HttpResponse:  # type: ignore[override]
        if not isinstance(exc, ProtocolError | APIException):
            log.error("A request failed.", exc_info=exc)
        exc = unavailable(exc, self._changes) or exc
        if isinstance(exc, ProtocolError):
            return self._refuse(exc)
        if isinstance(exc, APIException):
            error = ProtocolError(INVALID_REQUEST, str(exc.detail))
            response = json_response(self.refusal(error), exc.status_code)
            if exc.status_code == 401:
                response.headers["WWW-Authenticate"] = self.get_authenticate_header(self.request) or "Bearer"
            return response
        return json_response(self.refusal(ProtocolError(INTERNAL_ERROR, "Internal error.")), 500)

    def _refuse(self, error: ProtocolError) -> HttpResponse:
        response = json_response(self.refusal(error), error.http_status)
        if isinstance(error, Unavailable):
            response.headers["Retry-After"] = str(error.retry_after)
        return response

    @property
    def _changes(self) -> Changes | None:
        return changes_of(self.request._request)

    def finalize_response(  # type: ignore[override]
        self, request: Request, response: HttpResponseBase, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        response.headers["Allow"] = self.allow
        if isinstance(response, HttpResponse):
            _complete(response, self.entry)
        return response


class McpView(AgentView):
    """`POST /` and `POST /mcp`: Streamable HTTP, without sessions, in both eras."""

    advice = "Send MCP messages with POST. There is no GET stream."

    def post(self, request: Request) -> HttpResponseBase:
        accepted = http_checks.accepted(request.headers)
        post = parse(read_body(request._request), request.headers)
        self._log_methods(post)
        ready: list[Json] = []
        calls: list[PendingCall] = []
        for message in post.messages:
            answer = self._answer(message, alone=not post.is_batch)
            if isinstance(answer, PendingCall):
                calls.append(answer)
            elif answer is not None:
                ready.append(answer)
        if not (ready or calls):
            return HttpResponse(status=202, headers={"Content-Type": "application/json"})
        if calls and not post.is_batch:
            calls = [replace(calls[0], end_with=self._ending(request, sse=accepted.sse))]
        return _respond(accepted, post, ready, calls, self.entry)

    def _ending(self, request: Request, *, sse: bool) -> Callable[[Json], None] | None:
        """A function that sends the last response without the call's task; None if the server has no such
        way.
        """
        write_last: Callable[[bytes], None] | None = getattr(request._request, "scope", {}).get("write_last")
        if write_last is None:
            return None

        def end_with(response: Json) -> None:
            write_last(streams.sse_event(response) if sse else encode(response))
            get_running_loop().call_soon(self.entry.write, 200)  # after all responses

        return end_with

    def _answer(self, message: McpRequest | ProtocolError, *, alone: bool) -> Json | PendingCall | None:
        """A message's response, or the call that will have it. If the message is `alone`, its error is the
        POST's.
        """
        try:
            if isinstance(message, ProtocolError):
                raise message
            return _serve(self.bottle, message, self.entry.started, self._changes)
        except ProtocolError as error:
            if alone:
                raise
            return error.as_response()

    def _log_methods(self, post: Post) -> None:
        if post.is_batch:
            self.entry.mcp = f"batch of {len(post.messages)}"
            return
        for message in post.messages:
            if isinstance(message, McpRequest):
                name = message.params.get("name") if message.method == "tools/call" else None
                self.entry.mcp = message.method
                self.entry.tool = name if isinstance(name, str) else None


def _serve(
    bottle: Bottle, message: McpRequest, started: float, changes: Changes | None
) -> Json | PendingCall | None:
    if message.id is None:
        if message.method == "notifications/cancelled" and message.era is Era.HANDSHAKE:
            cancel(bottle.pk, message.params.get("requestId"))
        return None
    try:
        answer = dispatch(
            bottle,
            message.method,
            message.params,
            version=message.version,
            declares_tasks=message.declares_tasks,
        )
    except ProtocolError as error:
        raise addressed(error, message) from error
    except Exception as error:
        log.exception("A method failed.")
        failure = unavailable(error, changes) or ProtocolError(INTERNAL_ERROR, "Internal error.")
        raise addressed(failure, message) from error
    if isinstance(answer, Done):
        return result_response(message.id, answer.result)
    return PendingCall(
        bottle_id=bottle.pk,
        request=message,
        request_id=message.id,
        proposal_id=str(answer.pk),
        started=started,
    )


def addressed(error: ProtocolError, message: McpRequest) -> ProtocolError:
    error.request_id = message.id
    error.modern = message.era is Era.MODERN
    error.http_status = http_status(error.code, message.era)
    return error


def read_body(request: HttpRequest) -> bytes:
    body = request.read(settings.SUPERVISE_MAX_BODY_BYTES + 1)
    if len(body) > settings.SUPERVISE_MAX_BODY_BYTES:  # sent in chunks, so the length was not known before
        raise http_checks.too_large(settings.SUPERVISE_MAX_BODY_BYTES)
    return body


def _respond(
    accepted: http_checks.Accepted,
    post: Post,
    ready: list[Json],
    calls: list[PendingCall],
    entry: AccessEntry,
) -> HttpResponseBase:
    """JSON if everything is ready, events if calls wait, and always a type that the client accepts."""
    if calls and accepted.sse:
        return stream_response(streams.sse_body(ready, calls), "text/event-stream", entry)
    if calls:
        return stream_response(
            streams.json_body(ready, calls, is_batch=post.is_batch), "application/json", entry
        )
    if accepted.json:
        return json_response(ready if post.is_batch else ready[0], 200)
    return HttpResponse(b"".join(map(streams.sse_event, ready)), content_type="text/event-stream")


def stream_response(body: Any, content_type: str, entry: AccessEntry) -> StreamingHttpResponse:
    logged = streams.then(body, lambda complete: entry.write(200, gone=not complete))
    response = StreamingHttpResponse(logged, content_type=content_type)
    response.headers["X-Accel-Buffering"] = "no"
    response.headers["Cache-Control"] = "no-store"
    return response


def _complete(response: HttpResponse, entry: AccessEntry) -> None:
    """Add headers that Django's middleware adds for the console; the agent plane has none."""
    response.headers["Content-Length"] = str(len(response.content))
    response.headers["Cache-Control"] = "no-store"
    entry.write(response.status_code)
    response._has_been_logged = True  # type: ignore[attr-defined]  # or Django logs a second line


def json_response(message: Json | list[Json], status: int) -> HttpResponse:
    return HttpResponse(encode(message), status=status, content_type="application/json")


View = Callable[[HttpRequest], HttpResponse]


def _logged(view: View) -> View:
    @wraps(view)
    def wrapper(request: HttpRequest) -> HttpResponse:
        entry = AccessEntry(request.method or "", request.path)
        response = view(request)
        _complete(response, entry)
        return response

    return wrapper


def _reads_only(view: View) -> View:
    @wraps(view)
    def wrapper(request: HttpRequest) -> HttpResponse:
        if request.method in ("GET", "HEAD"):
            return view(request)
        return JsonResponse({"error": "Use GET."}, status=405, headers={"Allow": "GET, HEAD"})

    return wrapper


@_logged
@_reads_only
def health(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok", content_type="text/plain")


@_logged
@_reads_only
def healthz(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"ok": True})


@_logged
def not_found(request: HttpRequest) -> HttpResponse:
    return JsonResponse(
        {
            "error": "There is nothing here. MCP is at POST /mcp, health at GET /health, "
            "what this bottle is at GET /session-context."
        },
        status=404,
    )
