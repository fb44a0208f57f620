"""The risk of an approval: one level, and the reasons for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from egress.policy.hostnames import is_forbidden_address, is_punycode, mixed_script
from egress.policy.lookalikes import resembles
from egress.policy.table import RouteTable

READING_METHODS = {"GET", "HEAD", "OPTIONS"}


class Level(IntEnum):
    LOW = 0
    MEDIUM = 1
    HIGH = 2

    @property
    def word(self) -> str:
        return self.name.lower()


Finding = tuple[Level, str]  # the level that a reason gives by itself, and the reason


@dataclass(frozen=True, slots=True)
class Risk:
    """`findings` are the reasons, each with the level that it gives by itself, the gravest first."""

    level: Level
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Risk:
        """The level of the gravest finding. Equal findings count once."""
        once = tuple(sorted(dict.fromkeys(findings), key=lambda finding: -finding[0]))
        return cls(once[0][0] if once else Level.LOW, once)

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(reason for _, reason in self.findings)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The reasons that an operator must not overlook."""
        return tuple(reason for level, reason in self.findings if level > Level.LOW)


def route_risk(
    payload: Mapping[str, Any],
    table: RouteTable,
    warnings: Sequence[str],
    *,
    known_hosts: Set[str] = frozenset(),
) -> Risk:
    """The risk of opening a route. High: credentials, wildcards. Medium: anything that can carry data out.

    `known_hosts` are those that other bottles reach: operators may mistake a look-alike for one of them.
    """
    found = [*host_findings(payload["host"], table, known_hosts), *_route_findings(payload)]
    return Risk.of([*found, *((Level.MEDIUM, warning) for warning in warnings)])


def host_findings(host: str, table: RouteTable, known_hosts: Set[str]) -> list[Finding]:
    """What there is to say about letting a bottle reach this name."""
    found: list[Finding] = []
    if host.startswith("*."):
        found.append((Level.HIGH, f"wildcard: every name below {host[2:]}"))
    if mixed_script(host):
        found.append((Level.HIGH, "the name mixes scripts, as look-alikes do"))
    elif is_punycode(host):
        found.append((Level.MEDIUM, "the name is not plain ASCII (punycode)"))
    # First the bottle's own hosts alone: a look-alike that others reach too must not hide them.
    own = {route.host for route in table.routes}
    original = resembles(host, own) or resembles(host, own | known_hosts)
    if original:
        found.append((Level.HIGH, f"look-alike: it could be taken for {original}"))
    route = next(table.serving(host), None)
    if route is None:
        return [*found, (Level.LOW, "first route to this host for this bottle")]
    if route.auth:
        reach = f"new credential reach: the host's route carries the credential {route.auth.token_ref}"
        found.append((Level.HIGH, reach))
    return found + _private(route.pinned_addresses)


def _private(pinned: Sequence[str]) -> list[Finding]:
    inner = [address for address in pinned if is_forbidden_address(address)]
    return [(Level.HIGH, f"private address: the route is pinned to {', '.join(inner)}")] if inner else []


def _route_findings(payload: Mapping[str, Any]) -> list[Finding]:
    found = _private(payload.get("pinned_addresses") or ())
    if payload.get("auth"):
        found.append((Level.HIGH, f"carries the credential {payload['auth']['token_ref']}"))
    if not payload.get("path_allowlist"):
        found.append((Level.MEDIUM, "all paths"))
    methods = payload.get("methods") or []
    if not methods or set(methods) - READING_METHODS:
        found.append((Level.MEDIUM, "can send data out (" + (", ".join(methods) or "all methods") + ")"))
    if not payload.get("lease"):
        found.append((Level.LOW, "no end: the route stays until an operator removes it"))
    return found
