"""Authenticates bottles: by token, or by the socket that the egress process relayed.

Nothing else from an agent (slug, header, path) can name a bottle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from botbottle.models import Bottle, digest_token
from botbottle.web.middleware import plane
from botbottle.web.planes import Plane

IDENTITY_HEADER = "X-Bottle-Identity"
HOW_TO = (
    "Send 'Authorization: Bearer <bottle token>'. An operator prints a new token with 'bottle token SLUG'."
)


class BottleAuthentication(BaseAuthentication):
    """DRF authentication of the agent plane: `request.user` becomes the bottle."""

    def authenticate(self, request: Request) -> tuple[Bottle, str]:
        if plane(request._request) is Plane.RELAY:
            return _asking(_by_socket(request.headers.get(IDENTITY_HEADER, ""))), "socket"
        return _asking(_by_token(request.headers.get("Authorization", ""))), "token"

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="bot-bottle"'


def bottle_of_scope(scope: Mapping[str, Any]) -> Bottle:
    """Authenticate a websocket like a request. Raises AuthenticationFailed, PermissionDenied."""
    given: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        given.setdefault(name.lower(), []).append(value)

    def only(name: str) -> str:
        values = given.get(name.lower().encode(), [])
        return values[0].decode("latin-1") if len(values) == 1 else ""

    if scope["plane"] is Plane.RELAY:
        return _asking(_by_socket(only(IDENTITY_HEADER)))
    return _asking(_by_token(only("Authorization")))


def _asking(bottle: Bottle) -> Bottle:
    """Refuse a bottle without supervision. The egress process does so too, but a token bypasses it."""
    if not bottle.supervise:
        raise PermissionDenied("This bottle was started with 'supervise: false': it has nobody to ask.")
    return bottle


def _by_socket(slug: str) -> Bottle:
    bottle = Bottle.objects.filter(slug=slug).exclude(state=Bottle.State.DELETED).first()
    if bottle is None:
        raise AuthenticationFailed("No such bottle is known to the control plane.")
    return bottle


def _by_token(header: str) -> Bottle:
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise AuthenticationFailed(HOW_TO)
    bottle = Bottle.objects.filter(token_digest=digest_token(token.strip())).first()
    if bottle is None or not bottle.accepts(token.strip()) or bottle.state == Bottle.State.DELETED:
        raise AuthenticationFailed(f"This token is not valid. {HOW_TO}")
    return bottle
