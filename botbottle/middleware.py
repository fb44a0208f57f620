"""Middleware that separates the planes, and the headers every console page carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
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
    """The listener's plane. Without an ASGI scope (Django's test client), the environ's, else operator."""
    scope = getattr(request, "scope", None)
    return Plane(scope["plane"] if scope is not None else request.META.get("plane", Plane.OPERATOR))


@sync_and_async_middleware
def separate_planes(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Sends agents' requests to the agents' few views, past everything that belongs to the console."""
    if iscoroutinefunction(get_response):
        agent_view = sync_to_async(_agent_view, thread_sensitive=True)

        async def asynchronous(request: HttpRequest) -> HttpResponseBase:
            view = get_response if plane(request) is Plane.OPERATOR else agent_view
            response: HttpResponseBase = await view(request)
            return response

        return asynchronous

    def synchronous(request: HttpRequest) -> HttpResponseBase:
        view = get_response if plane(request) is Plane.OPERATOR else _agent_view
        response: HttpResponseBase = view(request)
        return response

    return synchronous


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
def content_security_policy(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    def secured(response: HttpResponseBase) -> HttpResponseBase:
        response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    if iscoroutinefunction(get_response):

        async def asynchronous(request: HttpRequest) -> HttpResponseBase:
            return secured(await get_response(request))

        return asynchronous

    return lambda request: secured(get_response(request))
