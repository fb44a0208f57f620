"""What one card shows, as values for the templates.

Trust boundary: agents' text in here is raw. Templates pass it through `visible`, and escape it like all else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from django.contrib.auth.models import User
from django.utils import timezone

from egress.policy.hostnames import is_punycode
from supervise.access.permissions import bottles_assigned_to_others, may_decide
from supervise.diffs import Diff, Pair, line_diff, side_by_side
from supervise.digests import digest, vote_digest
from supervise.errors import BadAsk
from supervise.models import Decision, Proposal
from supervise.proposals import queries, quorum
from supervise.proposals.kind import Edit, Kind, Preview, Review, kind_of
from supervise.proposals.precedents import Precedents, precedents_of
from supervise.proposals.queries import call_patience
from supervise.proposals.review import checked_payload
from supervise.proposals.risk import Level
from supervise.proposals.staleness import fingerprint

BRIEF = 240  # characters of one agent's text on a page with many cards
PAGE_ROWS = 5000  # rows of a diff on a proposal's own page
REASONS = 3  # on a card; the proposal's own page has them all
ICONS = {Level.HIGH: "▲", Level.MEDIUM: "◆", Level.LOW: "●"}
_AGENT = re.compile(r"^agent:\s*['\"]?([a-z][a-z-]{0,30})", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class AgentText:
    """Text from an agent, perhaps cut; `size` is the length of the whole text."""

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
    """One card of the queue: enough to see what matters and to choose what to open."""

    proposal: Proposal
    decision: Decision | None
    review: Review | None  # None once it is decided
    may_decide: bool

    @property
    def kind(self) -> Kind:
        return kind_of(self.proposal)

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
        """When the call stops waiting for the answer; an operator's own filing has no call."""
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
        """What a form carries, so that a form that comes too late can be told what changed."""
        return fingerprint(self.review) if self.review else ""

    @property
    def votes_needed(self) -> int:
        return quorum.operators_needed(self.review.risk.level) if self.review else 1

    @property
    def state(self) -> str:
        """Changes whenever the card would look different; open pages compare it."""
        return state_of(self.review, self.proposal, self.decision)


@dataclass(frozen=True)
class Change:
    """What granting the ask would do, or granting an operator's edit of it."""

    review: Preview

    @cached_property
    def diff(self) -> Diff:
        return line_diff(self.review.before, self.review.after, most_rows=PAGE_ROWS)

    @cached_property
    def pairs(self) -> list[Pair]:
        return side_by_side(self.diff)

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
    edited: Change | None  # what the edit in the form would do, once it was sent
    edit_problem: str
    precedents: Precedents

    @property
    def kind(self) -> Kind:
        return self.card.kind

    @cached_property
    def instructions(self) -> tuple[Sequence[object], int]:
        """The change instruction by instruction, and how many more there are."""
        return self.kind.instructions(self.change.review) if self.change else ((), 0)

    @property
    def asked_text(self) -> AgentText | None:
        """A long text of the payload by itself, where no diff shows all of it."""
        text = self.kind.asked_text(self.card.proposal.payload)
        if text is None or (self.change and not self.change.review.before and not self.change.diff.is_cut):
            return None
        return AgentText(text, len(text))

    @property
    def asked_label(self) -> str:
        return f"The {self.kind.diff_name} as asked"

    @property
    def outcome(self) -> list[tuple[str, str]]:
        """What a decision granted and did not grant, in full."""
        decision = self.card.decision
        if decision is None:
            return []
        parts = (("granted", decision.granted), ("not granted", decision.not_granted))
        return [(name, json.dumps(part, indent=2, ensure_ascii=False)) for name, part in parts if part]


def card_of(
    proposal: Proposal, reader: User, *, review: Review | None = None, others: Set[int] | None = None
) -> Card:
    """The card of one proposal, as it stands. `others` are bottles that only other operators decide for."""
    if proposal.is_pending and review is None:
        review = queries.review_of(proposal)
    if others is None:
        others = bottles_assigned_to_others(reader)
    decides = may_decide(reader) and proposal.bottle_id not in others
    if proposal.is_pending:
        return Card(proposal, None, review, decides)
    return Card(proposal, queries.decision_of(proposal), None, may_decide=False)


def detail_of(proposal: Proposal, reader: User, *, edit: Edit | None = None) -> Detail:
    """With `edit`, also what the edit would do, or what is wrong with it."""
    card = card_of(proposal, reader)
    edited, problem = (None, "") if edit is None or card.review is None else _edited(proposal, edit)
    return Detail(
        card=card,
        change=Change(card.review) if card.review else None,
        justification=AgentText(proposal.justification, len(proposal.justification)),
        edit=edit or (card.kind.edit_of(proposal.payload) if card.review else None),
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
    return kind_of(proposal).target(proposal.payload)


def summary_of(proposal: Proposal) -> str:
    """The ask in one line."""
    return kind_of(proposal).summary(proposal.payload)


def _votes(review: Review) -> tuple[str, ...]:
    """The operators who approved exactly this, as it stands now."""
    wanted = vote_digest(Proposal.Status.APPROVED, review.seen_digest, review.proposal.payload)
    return tuple(vote.actor.get_username() for vote in quorum.votes_for(review.proposal, wanted))
