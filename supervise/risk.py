"""How much a yes would give away, in one word and with the reasons. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from egress.hostnames import is_punycode, mixed_script
from egress.policy import RouteTable

READING_METHODS = {"GET", "HEAD", "OPTIONS"}


class Level(IntEnum):
    LOW = 0
    MEDIUM = 1
    HIGH = 2

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Risk:
    level: Level
    reasons: tuple[str, ...]


def assess(tool: str, payload: Mapping[str, Any], table: RouteTable, warnings: Sequence[str]) -> Risk:
    """High risk: credentials, wildcards, a new image. Medium: anything that can carry data out freely."""
    if tool == "capability-block":
        return Risk(Level.HIGH, ("changes the image the agent runs in",))
    found = list(_host_reasons(payload["host"], table))
    if tool == "egress-block":
        found += _route_reasons(payload)
    # At the gate a warning tells that the host stays unreachable, which is no risk.
    found += [(Level.MEDIUM if tool == "egress-block" else Level.LOW, warning) for warning in warnings]
    level = max((level for level, _ in found), default=Level.LOW)
    return Risk(level, tuple(reason for _, reason in sorted(found, key=lambda item: -item[0])))


def _host_reasons(host: str, table: RouteTable) -> list[tuple[Level, str]]:
    reasons = []
    if host.startswith("*."):
        reasons.append((Level.HIGH, f"wildcard: every name below {host[2:]}"))
    if mixed_script(host):
        reasons.append((Level.HIGH, "the name mixes scripts, as look-alikes do"))
    elif is_punycode(host):
        reasons.append((Level.MEDIUM, "the name is not plain ASCII (punycode)"))
    route = next(table.serving(host), None)
    if route is None:
        reasons.append((Level.LOW, "first route to this host for this bottle"))
    elif route.auth:
        reasons.append((Level.HIGH, f"the host's route carries the credential {route.auth.token_ref}"))
    return reasons


def _route_reasons(payload: Mapping[str, Any]) -> list[tuple[Level, str]]:
    reasons = []
    if payload.get("auth"):
        reasons.append((Level.HIGH, f"carries the credential {payload['auth']['token_ref']}"))
    if not payload.get("path_allowlist"):
        reasons.append((Level.MEDIUM, "all paths"))
    methods = payload.get("methods") or []
    if not methods or set(methods) - READING_METHODS:
        reasons.append((Level.MEDIUM, "can send data out (" + (", ".join(methods) or "all methods") + ")"))
    if not payload.get("lease"):
        reasons.append((Level.LOW, "no end: the route stays until an operator removes it"))
    return reasons
