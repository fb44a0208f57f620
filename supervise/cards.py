"""What one card shows, as values for the templates.

Trust boundary: agents' text in here is raw. Templates pass it through `visible`, and escape it like all else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User

from egress.hostnames import is_punycode

from . import queries
from .canonical import digest
from .diffs import MOST_ROWS, Diff, line_diff
from .editing import METHODS, SCHEMES, UNITS, Edit, edit_of_proposal
from .models import Decision, Proposal
from .permissions import may_decide
from .reviewing import Review
from .risk import Level

BRIEF = 4000  # characters of one agent's text on a page with many cards
PAGE_ROWS = 5000  # rows of a diff on a proposal's own page
ICONS = {Level.HIGH: "▲", Level.MEDIUM: "◆", Level.LOW: "●"}


@dataclass(frozen=True, slots=True)
class AgentText:
    """Text from an agent, perhaps cut; `size` is that of all of it."""

    text: str
    size: int

    @property
    def is_cut(self) -> bool:
        return len(self.text) < self.size

    @property
    def is_long(self) -> bool:
        return self.size > 600 or self.text.count("\n") > 12


@dataclass(frozen=True, slots=True)
class Card:
    proposal: Proposal
    decision: Decision | None
    review: Review | None  # None once it is decided
    diff: Diff | None
    justification: AgentText
    asked: AgentText | None  # the Dockerfile
    edit: Edit | None
    votes: tuple[str, ...]
    votes_needed: int
    may_decide: bool
    is_brief: bool

    @property
    def target(self) -> str:
        return target_of(self.proposal)

    @property
    def summary(self) -> str:
        return summary_of(self.proposal)

    @property
    def risk_icon(self) -> str:
        return ICONS[self.review.risk.level] if self.review else ""

    @property
    def is_punycode(self) -> bool:
        return is_punycode(self.target)

    @property
    def outcome(self) -> list[tuple[str, str]]:
        """What a decision gave and withheld, to be read in full."""
        if self.decision is None or self.is_brief:
            return []
        parts = (("granted", self.decision.granted), ("not granted", self.decision.not_granted))
        return [(name, json.dumps(part, indent=2, ensure_ascii=False)) for name, part in parts if part]

    @property
    def state(self) -> str:
        """Changes whenever the card would look different; open pages compare it."""
        return state_of(self.review, self.proposal, self.decision)

    @property
    def shows_asked(self) -> bool:
        """Whether the Dockerfile stands by itself, because the diff does not already show all of it."""
        if self.is_brief or self.asked is None:
            return False
        return self.review is None or bool(self.review.before) or self.diff is None or self.diff.is_cut

    @property
    def edits_here(self) -> bool:
        """A text too long for a page with many cards is edited on the proposal's own page."""
        return not (self.is_brief and self.asked and self.asked.is_cut)

    methods = METHODS
    schemes = SCHEMES
    units = tuple(UNITS)


def card_of(proposal: Proposal, reader: User, *, brief: bool) -> Card:
    """The card of one proposal, as it stands."""
    if proposal.is_pending:
        return pending_card(queries.review_of(proposal), reader, brief=brief)
    dockerfile = proposal.payload.get("dockerfile")
    return Card(
        proposal=proposal,
        decision=queries.decision_of(proposal),
        review=None,
        diff=None,
        justification=_agent_text(proposal.justification, brief),
        asked=None if dockerfile is None else _agent_text(dockerfile, brief),
        edit=None,
        votes=(),
        votes_needed=1,
        may_decide=False,
        is_brief=brief,
    )


def pending_card(review: Review, reader: User, *, brief: bool) -> Card:
    proposal = review.proposal
    dockerfile = proposal.payload.get("dockerfile")
    return Card(
        proposal=proposal,
        decision=None,
        review=review,
        diff=line_diff(review.before, review.after, most_rows=MOST_ROWS if brief else PAGE_ROWS),
        justification=_agent_text(proposal.justification, brief),
        asked=None if dockerfile is None else _agent_text(dockerfile, brief),
        edit=edit_of_proposal(proposal),
        votes=_votes(review),
        votes_needed=settings.SUPERVISE_QUORUM if review.risk.level is Level.HIGH else 1,
        may_decide=may_decide(reader),
        is_brief=brief,
    )


def with_edit(card: Card, edit: Edit) -> Card:
    return replace(card, edit=edit)


def state_of(review: Review | None, proposal: Proposal, decision: Decision | None) -> str:
    parts: list[object] = [proposal.status, proposal.joined]
    if review is not None:
        parts += [review.seen_digest, review.risk.level, _votes(review)]
    if decision is not None:
        parts += [decision.applied, decision.live_version, decision.apply_error]
    return digest(parts)[:16]


def target_of(proposal: Proposal) -> str:
    return str(proposal.payload.get("host", "container image"))


def summary_of(proposal: Proposal) -> str:
    """The ask in one line."""
    payload = proposal.payload
    if proposal.tool == Proposal.Tool.GATE:
        return f"let {payload['host']} through the gate, for {payload['failed_url']}"
    if proposal.tool == Proposal.Tool.CAPABILITY:
        lines = payload["dockerfile"].removesuffix("\n").count("\n") + 1
        return f"rebuild the bottle from a Dockerfile of {lines} line{'s' if lines > 1 else ''}"
    methods = ", ".join(payload.get("methods") or ["all methods"])
    paths = payload.get("path_allowlist")
    where = f"under {', '.join(paths)}" if paths else "on all paths"
    return f"{methods} on {payload['host']} {where}{_credential(payload)}{_ending(payload)}"


def _credential(payload: Mapping[str, Any]) -> str:
    return f", carrying {payload['auth']['token_ref']}" if payload.get("auth") else ""


def _ending(payload: Mapping[str, Any]) -> str:
    lease = payload.get("lease") or {}
    ending = ""
    if seconds := lease.get("ttl_seconds"):
        unit = next(name for name, size in UNITS.items() if seconds % size == 0)
        count = seconds // UNITS[unit]
        ending += f", for {count} {unit if count > 1 else unit.removesuffix('s')}"
    if uses := lease.get("max_uses"):
        ending += f", at most {uses} times"
    return ending


def _agent_text(text: str, brief: bool) -> AgentText:
    return AgentText(text[:BRIEF] if brief else text, len(text))


def _votes(review: Review) -> tuple[str, ...]:
    """Who already said yes to exactly this, as it stands now."""
    wanted = digest([Proposal.Status.APPROVED, review.seen_digest, review.proposal.payload])
    return tuple(
        vote.actor.get_username() for vote in review.proposal.approvals.all() if vote.granted_digest == wanted
    )
