"""Which plane a connection belongs to is decided by the listener it came in on, never by what it says."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from django.conf import settings


class Plane(StrEnum):
    AGENT = "agent"
    OPERATOR = "operator"
    RELAY = "relay"  # the egress process's private Unix socket; only here is an identity header believed


_by_port: dict[int, Plane] = {}


def assign(port: int, plane: Plane) -> None:
    _by_port[port] = plane


def plane_of(scope: Mapping[str, Any]) -> Plane | None:
    """The plane of an ASGI connection, or None for a listener we did not open."""
    server = scope.get("server")
    if server is None:
        return Plane.RELAY
    ports = _by_port or {
        settings.SUPERVISE_PORT: Plane.AGENT,
        settings.CONSOLE_PORT: Plane.OPERATOR,
    }
    return ports.get(server[1])
