"""Which plane a connection belongs to is decided by the listener it came in on, never by what it says."""

from __future__ import annotations

from enum import StrEnum


class Plane(StrEnum):
    AGENT = "agent"
    OPERATOR = "operator"
    RELAY = "relay"  # the egress process's private Unix socket; only here is an identity header believed
