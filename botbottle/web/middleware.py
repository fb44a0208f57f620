"""Middleware that separates the planes, and the headers of every console page."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import resolve

from botbottle.database.faults import Changes, watched_changes
from botbottle.web.planes import Plane

View = Callable[[HttpRequest], HttpResponseBase]
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
    """The listener's plane. Without an ASGI scope (Django's test client) the environ's, else operator."""
    scope = getattr(request, "scope", None)
    return Plane(scope["plane"] if scope is not None else request.META.get("plane", Plane.OPERATOR))


def separate_planes(get_response: View) -> View:
    """Route agents' requests to their few views, past everything that belongs to the console."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        with watched_changes() as request.changes:  # type: ignore[attr-defined]
            return get_response(request) if plane(request) is Plane.OPERATOR else _agent_view(request)

    return middleware


def changes_of(request: HttpRequest) -> Changes | None:
    """What the request has written so far, for the message of a database fault; None if not recorded."""
    return getattr(request, "changes", None)


def _agent_view(request: HttpRequest) -> HttpResponseBase:
    request.urlconf = settings.AGENT_URLCONF
    match = request.resolver_match = resolve(
        request.path_info, settings.AGENT_URLCONF
    )  # its last entry matches everything
    response: HttpResponseBase = match.func(request, *match.args, **match.kwargs)
    if hasattr(response, "render"):
        response.render()
    return response


def content_security_policy(get_response: View) -> View:
    def middleware(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    return middleware
