"""What agents file and what operators see of it, for tests that are about something else."""

from __future__ import annotations

from typing import Any

from botbottle.models import Bottle
from egress.policy.asks import parse_egress_ask, parse_gate_ask
from supervise.models import Proposal
from supervise.proposals import queries
from supervise.proposals.submit import submit_proposal

HOSTILE = "<script>alert(1)</script> & \u202egnp.exe \x1b[31m\x07 \x7f \u2028 \u200b \x00 \ud800 é"


def ask(bottle: Bottle, host: str = "api.example.com", why: str = "I need it.", **more: Any) -> Proposal:
    return submit_proposal(bottle, "egress-block", parse_egress_ask({"host": host, **more}), why).proposal


def ask_gate(bottle: Bottle, url: str = "https://gate.example.com/x", why: str = "Blocked.") -> Proposal:
    return submit_proposal(bottle, "pipelock-block", parse_gate_ask({"failed_url": url}), why).proposal


def ask_image(bottle: Bottle, dockerfile: str = "FROM debian:12\n", why: str = "I need a tool.") -> Proposal:
    return submit_proposal(bottle, "capability-block", {"dockerfile": dockerfile}, why).proposal


def seen(proposal: Proposal) -> str:
    """The digest of what an operator who looks now is shown."""
    return queries.review_of(queries.get_proposal(proposal.pk)).seen_digest
