"""The planes. A connection's plane is that of its listener, whatever the connection claims."""

from __future__ import annotations

from enum import StrEnum


class Plane(StrEnum):
    AGENT = "agent"
    OPERATOR = "operator"
    RELAY = "relay"  # the egress process's private Unix socket; identity headers are trusted only here
