"""Allows the console's websockets only to pages that the console itself served.

Trust boundary: a browser sends its cookies whichever page connects, and cookies ignore ports. Agents' pages
that an operator views on another port of the same machine are another site.
"""

from __future__ import annotations

from typing import Any

from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.http.request import split_domain_port, validate_host


class OwnOriginOnly:
    """Requires that the Origin's scheme, host and port are those of the request, and of a console."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        application = self.application if is_own_origin(scope) else WebsocketDenier()
        return await application(scope, receive, send)


def is_own_origin(scope: dict[str, Any]) -> bool:
    headers = {name: value.decode("latin-1").lower() for name, value in scope["headers"]}
    host = headers.get(b"host", "")
    scheme = headers.get(b"x-forwarded-proto", "http") if settings.SECURE_COOKIES else "http"
    return _is_console(host) and headers.get(b"origin") == f"{scheme}://{host}"


def _is_console(host: str) -> bool:
    domain, _ = split_domain_port(host)
    return bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)
