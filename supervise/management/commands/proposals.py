"""manage.py proposals list|show|approve|modify|reject"""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandParser

from botbottle.core.sanitize import make_visible, one_line
from supervise.api.serializers import ProposalLineSerializer, ProposalSerializer
from supervise.cli.base import OperatorCommand, Verbs, acting_operator, read_payload, review_lines
from supervise.models import Approval, Proposal
from supervise.proposals import decisions, queries
from supervise.proposals.kind import Review, kind_named, names
from supervise.proposals.review import checked_payload


class Command(OperatorCommand):
    help = "Show proposals and decide them."

    def add_own_arguments(self, parser: CommandParser) -> None:
        verbs = Verbs(parser, "list", "show", "approve", "modify", "reject")
        listing = verbs.add("list", "open proposals, or all of them")
        listing.add_argument("--all", action="store_true", help="also the decided ones")
        listing.add_argument("--status", choices=Proposal.Status.values)
        listing.add_argument("--bottle", default="", metavar="SLUG")
        listing.add_argument("--tool", default="", choices=names())
        _with_id(verbs.add("show", "everything about one proposal"))
        _decision(verbs.add("approve", "grant what was asked"))
        modify = verbs.add("modify", "grant something else for the same host, usually less")
        _decision(modify)
        modify.add_argument("--payload", required=True, metavar="FILE", help="JSON; '-' reads standard input")
        _decision(verbs.add("reject", "refuse, with a reason that the agent reads"), note_required=True)

    def run(self, options: dict[str, Any]) -> Any:
        match options["verb"]:
            case "list":
                return self._list(options)
            case "show":
                return _everything(queries.find_proposal(options["id"]))
            case _:
                return self._decide(options)

    def show(self, options: dict[str, Any], result: Any) -> None:
        match options["verb"]:
            case "list":
                for line in result:
                    self.stdout.write(_line(line))
                if not result:
                    self.stdout.write("No proposals.")
            case "show":
                self._show_proposal(queries.get_proposal(result["id"]))
            case _:
                self.stdout.write(_outcome(result))

    def _list(self, options: dict[str, Any]) -> Any:
        status = options["status"] or ("" if options["all"] else Proposal.Status.PENDING)
        lines = queries.proposal_lines(status=status, bottle=options["bottle"], tool=options["tool"])
        return ProposalLineSerializer(lines, many=True).data

    def _decide(self, options: dict[str, Any]) -> Any:
        """Show what is about to be decided, then decide exactly that."""
        actor = acting_operator(options["as"])
        payload = (
            read_payload(options["payload"], "the proposal's payload") if options["verb"] == "modify" else {}
        )
        proposal = queries.find_proposal(options["id"])
        digest = options["digest"]
        if not digest and proposal.is_pending:
            edited = checked_payload(proposal, payload) if payload else None
            review = queries.review_of(proposal, edited=edited)
            digest = review.seen_digest
            if not options["json"]:
                self._show_ask(proposal)
                self._show_review(review)
        given = {"actor": actor, "seen_digest": digest or "", "note": options["note"]}
        match options["verb"]:
            case "approve":
                made = decisions.approve(proposal.pk, **given)
            case "modify":
                made = decisions.modify(proposal.pk, payload=payload, **given)
            case _:
                made = decisions.reject(proposal.pk, **given)
        return {**_everything(queries.get_proposal(proposal.pk)), "complete": not isinstance(made, Approval)}

    def _show_proposal(self, proposal: Proposal) -> None:
        self._show_ask(proposal)
        if proposal.is_pending:
            review = queries.review_of(proposal)
            self._show_review(review)
            self.stdout.write(f"digest         {review.seen_digest}")
        else:
            self.stdout.write(_outcome(_everything(proposal)))

    def _show_ask(self, proposal: Proposal) -> None:
        self.stdout.write(
            f"{proposal.tool}  {proposal.pk}  {proposal.status}\n"
            f"bottle         {proposal.bottle.slug}, {proposal.created_at:%Y-%m-%d %H:%M:%S} UTC"
            + (f", asked {proposal.joined + 1} times" if proposal.joined else "")
        )
        self._show_hostile("payload", json.dumps(proposal.payload, indent=2, ensure_ascii=False))
        self._show_hostile("justification", proposal.justification)

    def _show_hostile(self, title: str, text: str) -> None:
        """Mark every line, so that nothing in the text can pass for this program's own output."""
        self.stdout.write(f"{title} (text from the agent, unverified):")
        for line in make_visible(text).split("\n"):
            self.stdout.write(f"  | {line}")

    def _show_review(self, review: Review) -> None:
        self.stdout.write(f"risk           {review.risk.level.word}: {'; '.join(review.risk.reasons)}")
        for line in review_lines(review):
            self.stdout.write(line)


def _with_id(parser: CommandParser) -> None:
    parser.add_argument("id", help="the proposal's id, or its first 8 characters or more")


def _decision(parser: CommandParser, *, note_required: bool = False) -> None:
    _with_id(parser)
    parser.add_argument("--note", default="", required=note_required, help="the agent reads it")
    parser.add_argument("--as", metavar="USER", help="who decides; needed when there are several superusers")
    parser.add_argument("--digest", help="the digest of what you saw; without it, of what is printed now")


def _everything(proposal: Proposal) -> dict[str, Any]:
    return dict(ProposalSerializer(proposal).data)


def _line(line: dict[str, Any]) -> str:
    what = line["host"] or kind_named(line["tool"]).noun
    why = one_line(line["justification_start"], 60)
    return f"{line['id'][:8]}  {line['status']:9}  {line['bottle']:20}  {line['tool']:16}  {what}  {why}"


def _outcome(result: dict[str, Any]) -> str:
    decision = result["decision"]
    if decision is None:
        names = ", ".join(result["approvals"])
        return f"recorded: {len(result['approvals'])} of {result['approvals_needed']} approvals ({names})"
    applied = {"live": f"live in version {decision['live_version']}", "nothing": "nothing to apply"}.get(
        decision["applied"], f"{decision['applied']} {make_visible(decision['apply_error'])}".strip()
    )
    lines = [f"{decision['status']} by {make_visible(decision['decided_by'])}: {applied}"]
    if decision["notes"]:
        lines.append(f"notes          {make_visible(decision['notes'])}")
    if decision["not_granted"]:
        lines.append(f"not granted    {make_visible(json.dumps(decision['not_granted']))}")
    return "\n".join(lines)
