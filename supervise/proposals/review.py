"""What an operator is shown of a proposal: the exact change it would make now, its risk, a digest of both.

The digest covers the proposal, the part of the bottle's state that it would change, and its risk. A change
elsewhere does not make a review stale; a change that the operator should know of always does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import fields
from datetime import datetime
from typing import Any

from django.utils import timezone

from botbottle.core.sanitize import without_nul_json
from egress.models import RouteTableVersion
from egress.tables import versions
from supervise.digests import digest
from supervise.errors import BadAsk
from supervise.models import Proposal
from supervise.proposals.kind import Context, Kind, Preview, Review, kind_of

Findings = Mapping[str, Any]  # by the kind's name


def find_facts(
    proposals: Iterable[Proposal], *, edited: dict[str, Any] | None = None, again: bool = False
) -> Findings:
    """What the kinds of these proposals find out before a review. May take a while: not in a transaction."""
    by_kind: dict[Kind, list[Proposal]] = {}
    for proposal in proposals:
        by_kind.setdefault(kind_of(proposal), []).append(proposal)
    return {kind.name: kind.find_facts(some, edited=edited, again=again) for kind, some in by_kind.items()}


def review(
    proposal: Proposal,
    version: RouteTableVersion,
    *,
    now: datetime | None = None,
    edited: dict[str, Any] | None = None,
    known_hosts: Set[str] | None = None,
    findings: Findings | None = None,
) -> Review:
    """The proposal against one version of its bottle's table. Time matters: leases end.

    With `edited`, an operator's checked payload, the review shows what that payload would do instead; the
    digest is the same, since the ask and the state are. `known_hosts` are the hosts that bottles reach:
    callers that review many proposals look them up once. `findings` come from `find_facts`, called before,
    because a transaction may be open here.
    """
    kind, now = kind_of(proposal), now or timezone.now()
    if known_hosts is None:
        known_hosts = versions.hosts_reached() if kind.changes_table else frozenset()
    context = Context(version.table, now, known_hosts, (findings or {}).get(kind.name))
    asked = kind.preview(proposal, proposal.payload, context, by_operator=False)
    shown = asked
    if edited is not None:
        shown = kind.preview(proposal, edited, context, by_operator=True)
    state = [kind.affected_state(proposal, version.table, now), asked.risk.level, asked.risk.reasons]
    return Review(
        proposal=proposal,
        table_version=version.version,
        at=now,
        seen_digest=digest([proposal.digest, *state]),
        **{field.name: getattr(shown, field.name) for field in fields(Preview)},
    )


def checked_payload(proposal: Proposal, payload: dict[str, Any]) -> dict[str, Any]:
    """An operator's edited payload in canonical form. Raises BadAsk."""
    try:
        return kind_of(proposal).check_edit(proposal, without_nul_json(payload))
    except ValueError as error:  # the parsers' own refusals
        raise BadAsk(str(error)) from error
