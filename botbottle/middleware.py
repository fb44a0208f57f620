"""Middleware that separates the planes, and the headers every console page carries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve
from django.utils.decorators import sync_and_async_middleware

from .planes import Plane

CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ]
)


def plane(request: HttpRequest) -> Plane:
    """The listener's plane. Without an ASGI scope (Django's test client) it is the environ's, else operator."""
    scope = getattr(request, "scope", None)
    return Plane(scope["plane"] if scope is not None else request.META.get("plane", Plane.OPERATOR))


class PlaneMiddleware:
    """Sends agents' requests to the agents' few views, past everything that belongs to the console."""

    async_capable = True
    sync_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if iscoroutinefunction(self):
            return self._asynchronously(request)
        return self.get_response(request) if plane(request) is Plane.OPERATOR else _agent_view(request)

    async def _asynchronously(self, request: HttpRequest) -> HttpResponseBase:
        if plane(request) is Plane.OPERATOR:
            return await self.get_response(request)  # type: ignore[misc]
        return await sync_to_async(_agent_view, thread_sensitive=True)(request)


def _agent_view(request: HttpRequest) -> HttpResponseBase:
    request.urlconf = settings.AGENT_URLCONF
    try:
        match = resolve(request.path_info, settings.AGENT_URLCONF)
    except Resolver404:
        match = resolve("/not-found", settings.AGENT_URLCONF)
    request.resolver_match = match
    response: HttpResponseBase = match.func(request, *match.args, **match.kwargs)
    if hasattr(response, "render"):
        response.render()
    return response


@sync_and_async_middleware
def content_security_policy(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    def secured(response: HttpResponseBase) -> HttpResponseBase:
        response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    if iscoroutinefunction(get_response):

        async def asynchronous(request: HttpRequest) -> HttpResponseBase:
            return secured(await get_response(request))

        return asynchronous  # type: ignore[return-value]
    return lambda request: secured(get_response(request))
