"""What the rest of `supervise` asks of a kind of proposal, and the registry of all kinds.

A kind is one class in `supervise.kinds`, registered when Django starts. The defaults here make the simplest
kind: nothing can be modified, and an approval is recorded and changes nothing else.

Trust boundary: arguments, payloads and forms are unchecked until `parse` or `check_edit` has returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Protocol

from django.db.models import Q
from django.http import QueryDict

from botbottle.models import Bottle
from egress.models import RouteTableVersion
from egress.policy.table import RouteTable
from supervise.diffs import Diff
from supervise.errors import BadAsk
from supervise.models import Decision, Proposal
from supervise.proposals.risk import Risk

Json = dict[str, Any]
Applied, Status = Decision.Applied, Proposal.Status
WAITS = (
    "The call waits for a human operator and returns a status. approved: it is applied, go on. modified: the "
    "operator changed it; read 'granted' and 'not_granted'. rejected: read 'notes', then do without it or "
    "ask for less. pending: not decided yet, still queued; do other work and call check-proposal with the "
    "proposal_id, or make the same call again to wait for it (it joins the open proposal)."
)


@dataclass(frozen=True, slots=True)
class Context:
    """What a proposal meets: the bottle's table, the time, and what was looked up before."""

    table: RouteTable
    now: datetime
    known_hosts: Set[str]  # that bottles of this installation reach
    findings: Any  # of `Kind.find_facts`


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What granting one payload would do."""

    before: str  # what it would change, as text that an operator can read
    after: str
    effects: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    risk: Risk
    table_after: RouteTable | None = None  # None: no route table changes
    notes: tuple[str, ...] = ()  # what could not be found out; the digest does not cover it


@dataclass(frozen=True, slots=True, kw_only=True)
class Review(Preview):
    """A preview of one proposal at one moment, with the digest to decide with."""

    proposal: Proposal
    table_version: int
    at: datetime
    seen_digest: str


@dataclass(frozen=True, slots=True)
class ChangesSince:
    """What changed after a form was shown. `diff` is that of the bottle's route table."""

    sentences: tuple[str, ...] = ()
    diff: Diff | None = None


class Edit(Protocol):
    """The fields of a form that modifies a proposal."""

    def payload(self) -> Json:
        """Raises BadAsk where the fields contradict each other."""
        ...


class Kind:
    """One kind of proposal. `name` is the tool's name: on disk, in the API and in the agent's calls."""

    name: ClassVar[str]
    noun: ClassVar[str]  # the target, where no payload is at hand
    shown_keys: ClassVar[tuple[str, ...]] = ()  # of payload and grant: those that a session's context has

    # The tool as agents see it; without a description, agents cannot call it by its name.
    title: ClassVar[str] = ""
    description: ClassVar[str] = ""
    properties: ClassVar[Mapping[str, Json]] = {}
    required: ClassVar[tuple[str, ...]] = ()

    diff_name: ClassVar[str] = "Change"  # what `Preview.before` and `after` are, as a heading
    precedents_name: ClassVar[str] = ""  # heading of earlier decisions; empty: the bottle and the target
    edit_template: ClassVar[str] = ""  # of the form that modifies it; empty: it can only be approved as it is
    why_not_editable: ClassVar[str] = "This proposal cannot be modified. Approve or reject it."
    changes_table: ClassVar[bool] = False  # the decision is applied by publishing the bottle's route table
    builds_image: ClassVar[bool] = False  # the decision is applied by a rebuild
    can_be_drafted: ClassVar[bool] = False  # the proxy suggests this ask when it refuses a request

    # --- What agents ask

    def parse(self, bottle: Bottle, arguments: Mapping[str, Any]) -> Json:
        """The canonical payload. Raises BadAsk or ValueError with a sentence for the agent."""
        raise NotImplementedError

    def arguments_of(self, payload: Json) -> Json:
        """The arguments that `parse` makes this payload of."""
        return dict(payload)

    def union(self, payloads: Sequence[Json]) -> Json:
        """One ask for all of these, which are about the same host; the newest comes first."""
        return dict(payloads[0])

    # --- What operators are shown

    def target(self, payload: Json) -> str:
        """What the proposal is about, in a few words."""
        return self.noun

    def summary(self, payload: Json) -> str:
        """The ask in one line."""
        raise NotImplementedError

    def asked_text(self, payload: Json) -> str | None:
        """A long text in the payload, to be shown by itself where no diff shows all of it."""
        return None

    def find_facts(self, proposals: Sequence[Proposal], *, edited: Json | None, again: bool) -> Any:
        """Find out what takes a while, for all of these. Never called inside a transaction.

        `edited` is an operator's payload for them. With `again`, nothing remembered is good enough.
        """
        return None

    def preview(self, proposal: Proposal, payload: Json, context: Context, *, by_operator: bool) -> Preview:
        """What granting this payload would do now."""
        raise NotImplementedError

    def affected_state(self, proposal: Proposal, table: RouteTable, now: datetime) -> object:
        """The part of the bottle's state that decides what an approval would do, as JSON."""
        return None

    def instructions(self, preview: Preview) -> tuple[Sequence[object], int]:
        """The change by instruction, and how many more there are. Empty: the diff says it all."""
        return (), 0

    def precedents(self, payload: Json) -> Q:
        """Which earlier decisions of the same bottle an operator should know of."""
        return Q(tool=self.name)

    def fingerprint(self, review: Review) -> str:
        """What `changed_since` needs to know of a review that was shown: at most 60 of `[0-9a-z. ]`."""
        return ""

    def changed_since(self, fingerprint: str, now: Review) -> ChangesSince | None:
        """What changed since then; None where the fingerprint cannot be read. It comes from a form."""
        return ChangesSince()

    # --- What operators decide

    def edit_of(self, payload: Json) -> Edit | None:
        """What the form that modifies it starts with."""
        return None

    def edit_of_form(self, form: QueryDict) -> Edit:
        """Raises BadAsk where nothing can be modified."""
        raise BadAsk(self.why_not_editable)

    def check_edit(self, proposal: Proposal, payload: Json) -> Json:
        """An operator's payload in canonical form. Raises BadAsk or ValueError."""
        raise BadAsk(self.why_not_editable)

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
        """Make the change in the database and return the columns of the decision that say so.

        Runs in the transaction of the decision, which holds the bottle's lock.
        """
        return {"granted": payload, "applied": Applied.RECORDED}

    def enqueue(self, decision: Decision) -> None:
        """Queue the work of a decision that waits to be applied, in its transaction."""

    def apply(self, decision: Decision) -> None:
        """Apply a decision that waits for it, after the commit. May be called again."""

    # --- What everybody is told of the answer

    def status_for_agent(self, decision: Decision) -> str:
        return decision.status

    def explain(self, decision: Decision) -> str:
        """What an approval means to the agent: true, and with the next step."""
        return "Approved and recorded."

    def applied_words(self, applied: str, live_version: int | None, problem: str) -> str:
        """How far applying a decision has come, for an agent whose session begins; empty for nothing."""
        match applied:
            case Applied.NOTHING:
                return ""
            case Applied.LIVE:  # an image is in no table
                return "live" if live_version is None else f"live in table version {live_version}"
            case Applied.FAILED:
                return f"not live yet: {problem}"
        return applied

    def confirmation(self, decision: Decision) -> str:
        """What follows the words "Approved: this for that bottle" on the operator's page."""
        match decision.applied:
            case Applied.LIVE:
                took = decision.live_at - decision.created_at if decision.live_at else timedelta()
                milliseconds = max(1, round(took.total_seconds() * 1000))
                return f" → live v{decision.live_version} in {milliseconds} ms."
            case Applied.WAITING:
                return ", and being applied."
            case Applied.RECORDED:
                return ", and recorded."
        return ". The agent reads your reason."

    def applied_label(self, decision: Decision) -> tuple[str, str]:
        """How far applying it has come: a class of the style sheet, and the words."""
        match decision.applied:
            case Applied.LIVE:
                return "live", f"live v{decision.live_version}" if decision.live_version else "live"
            case Applied.FAILED:
                return "not-live", f"{decision.status}, not live: {decision.apply_error}"
            case Applied.WAITING:
                return "not-live", f"{decision.status}, not live yet: being applied"
            case Applied.RECORDED:
                return "", "recorded"
        return "quiet", "nothing changed"


_kinds: dict[str, Kind] = {}


def register(kind: Kind) -> None:
    if kind.name in _kinds:
        raise ValueError(f"There are two kinds of proposals named {kind.name}.")
    _kinds[kind.name] = kind


def kinds() -> tuple[Kind, ...]:
    """In the order in which they were registered."""
    return tuple(_kinds.values())


def names() -> tuple[str, ...]:
    return tuple(_kinds)


def kind_named(name: str) -> Kind:
    """Raises LookupError."""
    try:
        return _kinds[name]
    except KeyError:
        raise LookupError(f"There is no kind of proposal named {name[:60]!a}.") from None


def kind_of(proposal: Proposal) -> Kind:
    """Raises LookupError for a kind that does not exist any more."""
    return kind_named(proposal.tool)


def required_text(arguments: Mapping[str, Any], name: str) -> str:
    """Raises BadAsk."""
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadAsk(f"{name} is required and must be text that is not empty.")
    return value
