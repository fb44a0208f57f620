"""What one card shows, as values for the templates.

Trust boundary: agents' text in here is raw. Templates pass it through `visible`, and escape it like all else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone

from egress.policy.hostnames import is_punycode
from supervise.access.permissions import bottles_assigned_to_others, may_decide
from supervise.console.edit_forms import METHODS, SCHEMES, UNITS, Edit, edit_of_proposal
from supervise.diffs import Diff, Pair, line_diff, side_by_side
from supervise.digests import digest
from supervise.errors import BadAsk
from supervise.kinds import dockerfile_review
from supervise.models import Decision, Proposal
from supervise.proposals import queries
from supervise.proposals.precedents import Precedents, precedents_of
from supervise.proposals.queries import call_patience
from supervise.proposals.review import Review, checked_payload
from supervise.proposals.risk import Level
from supervise.proposals.staleness import note_of

BRIEF = 240  # characters of one agent's text on a page with many cards
PAGE_ROWS = 5000  # rows of a diff on a proposal's own page
REASONS = 3  # on a card; the proposal's own page has them all
ICONS = {Level.HIGH: "▲", Level.MEDIUM: "◆", Level.LOW: "●"}
_AGENT = re.compile(r"^agent:\s*['\"]?([a-z][a-z-]{0,30})", re.MULTILINE)


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


@dataclass(frozen=True)
class Card:
    """One line of the queue: enough to see what matters and to choose what to open."""

    proposal: Proposal
    decision: Decision | None
    review: Review | None  # None once it is decided
    may_decide: bool

    @property
    def target(self) -> str:
        return target_of(self.proposal)

    @property
    def summary(self) -> str:
        return summary_of(self.proposal)

    @property
    def agent(self) -> str:
        """The kind of agent that the bottle was started with."""
        found = _AGENT.search(self.proposal.bottle.manifest)
        return found[1] if found and found[1] != "none" else ""

    @property
    def risk_icon(self) -> str:
        return ICONS[self.review.risk.level] if self.review else ""

    @property
    def is_low_risk(self) -> bool:
        return self.review is not None and self.review.risk.level is Level.LOW

    @property
    def is_punycode(self) -> bool:
        return is_punycode(self.target)

    @property
    def findings(self) -> list[tuple[str, str, str]]:
        """The reasons of the risk: an icon, the level's word, the sentence."""
        if self.review is None:
            return []
        return [(ICONS[level], level.word, reason) for level, reason in self.review.risk.findings]

    @property
    def first_findings(self) -> list[tuple[str, str, str]]:
        return self.findings[:REASONS]

    @property
    def more_findings(self) -> int:
        return max(0, len(self.findings) - REASONS)

    @property
    def justification_start(self) -> str:
        return self.proposal.justification[: BRIEF * 2]

    @property
    def call_ends_at(self) -> datetime | None:
        """Until when a call waits for the answer; an operator's own filing has none."""
        return None if self.proposal.filed_by else self.proposal.asked_at + call_patience()

    @property
    def is_snoozed(self) -> bool:
        until = self.proposal.snoozed_until
        return self.review is not None and until is not None and until > timezone.now()

    @cached_property
    def votes(self) -> tuple[str, ...]:
        return _votes(self.review) if self.review else ()

    @property
    def seen(self) -> str:
        """What a form carries, so that one that came too late can be told what changed."""
        return note_of(self.review) if self.review else ""

    @property
    def votes_needed(self) -> int:
        is_high = self.review is not None and self.review.risk.level is Level.HIGH
        return int(settings.SUPERVISE_QUORUM) if is_high else 1

    @property
    def state(self) -> str:
        """Changes whenever the card would look different; open pages compare it."""
        return state_of(self.review, self.proposal, self.decision)


@dataclass(frozen=True)
class Change:
    """What an approval would do: of the ask, or of an operator's edit of it."""

    review: Review

    @cached_property
    def diff(self) -> Diff:
        return line_diff(self.review.before, self.review.after, most_rows=PAGE_ROWS)

    @cached_property
    def pairs(self) -> list[Pair]:
        return side_by_side(self.diff)

    @cached_property
    def instructions(self) -> tuple[list[dockerfile_review.Change], int]:
        if self.review.proposal.tool != Proposal.Tool.CAPABILITY:
            return [], 0
        return dockerfile_review.changes(self.review.before, self.review.after)

    @property
    def risk_icon(self) -> str:
        return ICONS[self.review.risk.level]

    @property
    def findings(self) -> list[tuple[str, str, str]]:
        return [(ICONS[level], level.word, reason) for level, reason in self.review.risk.findings]


@dataclass(frozen=True)
class Detail:
    """Everything about one proposal, for its own page and for the dialog on the queue."""

    card: Card
    change: Change | None
    justification: AgentText
    edit: Edit | None
    edited: Change | None  # what the edit in the form would do, once somebody asked
    edit_problem: str
    precedents: Precedents

    @property
    def dockerfile(self) -> AgentText | None:
        """The Dockerfile by itself, where no diff shows all of it."""
        text = self.card.proposal.payload.get("dockerfile")
        if text is None or (self.change and not self.change.review.before and not self.change.diff.is_cut):
            return None
        return AgentText(text, len(text))

    @property
    def outcome(self) -> list[tuple[str, str]]:
        """What a decision gave and withheld, to be read in full."""
        decision = self.card.decision
        if decision is None:
            return []
        parts = (("granted", decision.granted), ("not granted", decision.not_granted))
        return [(name, json.dumps(part, indent=2, ensure_ascii=False)) for name, part in parts if part]

    methods = METHODS
    schemes = SCHEMES
    units = tuple(UNITS)


def card_of(
    proposal: Proposal, reader: User, *, review: Review | None = None, others: Set[int] | None = None
) -> Card:
    """The card of one proposal, as it stands. `others` are the bottles that only others decide for."""
    if proposal.is_pending and review is None:
        review = queries.review_of(proposal)
    if others is None:
        others = bottles_assigned_to_others(reader)
    decides = may_decide(reader) and proposal.bottle_id not in others
    if proposal.is_pending:
        return Card(proposal, None, review, decides)
    return Card(proposal, queries.decision_of(proposal), None, may_decide=False)


def detail_of(proposal: Proposal, reader: User, *, edit: Edit | None = None) -> Detail:
    """With `edit`, also what that would do, or what is wrong with it."""
    card = card_of(proposal, reader)
    edited, problem = (None, "") if edit is None or card.review is None else _edited(proposal, edit)
    return Detail(
        card=card,
        change=Change(card.review) if card.review else None,
        justification=AgentText(proposal.justification, len(proposal.justification)),
        edit=edit or (edit_of_proposal(proposal) if card.review else None),
        edited=edited,
        edit_problem=problem,
        precedents=precedents_of(proposal, card.review),
    )


def _edited(proposal: Proposal, edit: Edit) -> tuple[Change | None, str]:
    try:
        payload = checked_payload(proposal, edit.payload())
    except BadAsk as error:
        return None, error.message
    return Change(queries.review_of(proposal, edited=payload)), ""


def state_of(review: Review | None, proposal: Proposal, decision: Decision | None) -> str:
    until = proposal.snoozed_until
    parts: list[object] = [proposal.status, proposal.joined, until and until.isoformat()]
    if review is not None:
        parts += [review.seen_digest, review.risk.level, review.notes, _votes(review)]
    if decision is not None:
        parts += [decision.applied, decision.live_version, decision.apply_error]
    return digest(parts)[:16]


def target_of(proposal: Proposal) -> str:
    if proposal.tool == Proposal.Tool.MCP_TOOL:
        return f"{proposal.payload['tool']} of {proposal.payload['server']}"
    return str(proposal.payload.get("host", "container image"))


def summary_of(proposal: Proposal) -> str:
    """The ask in one line."""
    payload = proposal.payload
    if proposal.tool == Proposal.Tool.GATE:
        return f"let {payload['host']} through the gate, for {payload['failed_url']}"
    if proposal.tool == Proposal.Tool.MCP_TOOL:
        return f"call {payload['tool']} of {payload['server']} with {json.dumps(payload['arguments'])}"
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


def _votes(review: Review) -> tuple[str, ...]:
    """Who already said yes to exactly this, as it stands now."""
    wanted = digest([Proposal.Status.APPROVED, review.seen_digest, review.proposal.payload])
    return tuple(
        vote.actor.get_username() for vote in review.proposal.approvals.all() if vote.granted_digest == wanted
    )
