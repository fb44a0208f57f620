"""How much a yes would give away, in one word and with the reasons. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from botbottle.dockerfiles.parse import BadDockerfile
from egress.policy.hostnames import is_forbidden_address, is_punycode, mixed_script
from egress.policy.lookalikes import resembles
from egress.policy.table import RouteTable
from supervise.kinds.dockerfile_review import flags_of

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
    """`findings` are the reasons with the level that each gives by itself, the gravest first."""

    level: Level
    findings: tuple[tuple[Level, str], ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(reason for _, reason in self.findings)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator must not overlook."""
        return tuple(reason for level, reason in self.findings if level > Level.LOW)


def assess(
    tool: str,
    payload: Mapping[str, Any],
    table: RouteTable,
    warnings: Sequence[str],
    *,
    known: Set[str] = frozenset(),
) -> Risk:
    """High risk: credentials, wildcards, a new image. Medium: anything that can carry data out freely.

    `known` are hosts that other bottles reach: operators may take a look-alike for one of them.
    """
    if tool == "capability-block":
        changed = [(Level.HIGH, warning) for warning in ("changes the image the agent runs in", *warnings)]
        return Risk(Level.HIGH, (*changed, *_image(payload)))
    if tool == "mcp-tool":
        reason = (
            f"calls {payload['tool']} of {payload['server']}, which the manifest lets nobody call unasked"
        )
        return Risk(Level.MEDIUM, ((Level.MEDIUM, reason),))
    found = list(_host_reasons(payload["host"], table, known))
    if tool == "egress-block":
        found += _route_reasons(payload)
    # At the gate a warning tells that the host stays unreachable, which is no risk.
    found += [(Level.MEDIUM if tool == "egress-block" else Level.LOW, warning) for warning in warnings]
    level = max((level for level, _ in found), default=Level.LOW)
    once = dict.fromkeys(found)  # a route that exists and the payload may say the same
    return Risk(level, tuple(sorted(once, key=lambda item: -item[0])))


def _image(payload: Mapping[str, Any]) -> tuple[tuple[Level, str], ...]:
    try:
        return tuple((Level.HIGH, flag) for flag in flags_of(payload["dockerfile"]))
    except BadDockerfile:  # it passed once: only an old record can be out of date
        return ()


def _host_reasons(host: str, table: RouteTable, known: Set[str]) -> list[tuple[Level, str]]:
    reasons = []
    if host.startswith("*."):
        reasons.append((Level.HIGH, f"wildcard: every name below {host[2:]}"))
    if mixed_script(host):
        reasons.append((Level.HIGH, "the name mixes scripts, as look-alikes do"))
    elif is_punycode(host):
        reasons.append((Level.MEDIUM, "the name is not plain ASCII (punycode)"))
    # The bottle's own by themselves: that others reach the look-alike too must not hide it.
    own = {route.host for route in table.routes}
    original = resembles(host, own) or resembles(host, own | known)
    if original:
        reasons.append((Level.HIGH, f"look-alike: it could be taken for {original}"))
    route = next(table.serving(host), None)
    if route is None:
        reasons.append((Level.LOW, "first route to this host for this bottle"))
    elif route.auth:
        reasons.append(
            (
                Level.HIGH,
                f"new credential reach: the host's route carries the credential {route.auth.token_ref}",
            )
        )
    if route is not None:
        reasons += _private(route.pinned_addresses)
    return reasons


def _private(pinned: Sequence[str]) -> list[tuple[Level, str]]:
    inner = [address for address in pinned if is_forbidden_address(address)]
    return [(Level.HIGH, f"private address: the route is pinned to {', '.join(inner)}")] if inner else []


def _route_reasons(payload: Mapping[str, Any]) -> list[tuple[Level, str]]:
    reasons = _private(payload.get("pinned_addresses") or ())
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
