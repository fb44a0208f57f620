"""What the kinds have in common whose approval changes the bottle's route table."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from datetime import UTC, datetime

from django.db.models import Q

from egress.models import RouteTableVersion
from egress.policy.describe import table_text
from egress.policy.hostnames import pattern_matches
from egress.policy.merge import Merge
from egress.policy.routes import Route
from egress.policy.table import RouteTable
from egress.tables import versions
from supervise.diffs import line_diff
from supervise.errors import BadAsk
from supervise.models import Decision, Proposal
from supervise.proposals import apply
from supervise.proposals.kind import Applied, ChangesSince, Context, Json, Kind, Preview, Review
from supervise.proposals.risk import Risk

_FINGERPRINT = re.compile(r"([0-9]{1,9}) ([0-9]{1,11}\.[0-9]{6})")


class TableKind(Kind):
    """An ask about one host. Its payload has the key `host`."""

    noun = "a host"
    diff_name = "Route table"
    changes_table = True
    can_be_drafted = True

    def merge(self, table: RouteTable, payload: Json, *, now: datetime, by_operator: bool) -> Merge:
        """The table as it would be. Only an operator's own payload changes what only operators set."""
        raise NotImplementedError

    def risk(self, payload: Json, table: RouteTable, warnings: Sequence[str], known_hosts: Set[str]) -> Risk:
        raise NotImplementedError

    def check(self, payload: Json) -> Json:
        """An operator's payload in canonical form. Raises BadAsk or ValueError."""
        raise NotImplementedError

    def explain_live(self, decision: Decision) -> str:
        raise NotImplementedError

    def target(self, payload: Json) -> str:
        return str(payload["host"])

    def preview(self, proposal: Proposal, payload: Json, context: Context, *, by_operator: bool) -> Preview:
        merged = self.merge(context.table, payload, now=context.now, by_operator=by_operator)
        return Preview(
            before=table_text(context.table),
            after=table_text(merged.table),
            effects=merged.effects,
            warnings=merged.warnings,
            risk=self.risk(payload, context.table, merged.warnings, context.known_hosts),
            table_after=merged.table,
        )

    def affected_state(self, proposal: Proposal, table: RouteTable, now: datetime) -> object:
        host = proposal.payload["host"]
        related = [[route.as_dict(), route.is_over(now)] for route in _related_routes(host, table)]
        return [related, table.gate_allows(host)]

    def precedents(self, payload: Json) -> Q:
        return Q(proposal__payload__host=payload["host"])

    def fingerprint(self, review: Review) -> str:
        return f"{review.table_version} {review.at.timestamp():.6f}"

    def changed_since(self, fingerprint: str, now: Review) -> ChangesSince | None:
        match = _FINGERPRINT.fullmatch(fingerprint)
        if match is None:
            return None
        seen_version, seen_at = int(match[1]), datetime.fromtimestamp(float(match[2]), UTC)
        wanted = RouteTableVersion.objects.filter(
            bottle=now.proposal.bottle_id, version__in=[seen_version, now.table_version]
        )
        tables = {version.version: version.table for version in wanted}
        ended = tuple(
            f"The lease of {route.host} ended."
            for route in _related_routes(now.proposal.payload["host"], tables[now.table_version])
            if route.is_over(now.at) and not route.is_over(seen_at)
        )
        if seen_version not in tables:
            return ChangesSince(ended)
        diff = line_diff(table_text(tables[seen_version]), now.before)
        return ChangesSince(ended, diff if diff.rows else None)

    def check_edit(self, proposal: Proposal, payload: Json) -> Json:
        checked = self.check(payload)
        asked, given = proposal.payload["host"], checked["host"]
        if given != asked and not pattern_matches(asked, given):
            raise BadAsk(f"The agent asked for {asked}. Reject this proposal to answer about another host.")
        return checked

    def change(
        self,
        proposal: Proposal,
        payload: Json,
        version: RouteTableVersion,
        *,
        author: str,
        now: datetime,
        by_operator: bool,
    ) -> Json:
        merged = self.merge(version.table, payload, now=now, by_operator=by_operator)
        if merged.changed:
            version = versions.append(version, merged.table, author=author, cause=f"proposal {proposal.pk}")
        return {
            "granted": merged.granted,
            "not_granted": self.not_granted(proposal.payload, payload, merged),
            "table_version": version,
            "applied": Applied.WAITING,
        }

    def apply(self, decision: Decision) -> None:
        apply.publish(decision)

    def explain(self, decision: Decision) -> str:
        if decision.applied == Applied.WAITING:
            return "Approved, and being applied. Call check-proposal in a moment to see it live."
        if decision.applied == Applied.FAILED:
            return (
                f"Approved, but not live: {decision.apply_error}. It is retried; call check-proposal later."
            )
        return self.explain_live(decision)

    def not_granted(self, asked: Json, payload: Json, merged: Merge) -> Json | None:
        """The part of the ask that was not granted, or None when all of it was."""
        return {"host": asked["host"]} if asked["host"] != payload["host"] else None


def _related_routes(host: str, table: RouteTable) -> list[Route]:
    """The routes that an ask for the host could change, or that could decide for the host."""
    return [
        route
        for route in table.routes
        if route.host == host or pattern_matches(route.host, host) or pattern_matches(host, route.host)
    ]
