"""What agents are told: true, and with the next step."""

from __future__ import annotations

from typing import Any

import pytest

from supervise.kinds.egress_block import not_granted
from supervise.models import Decision, Proposal
from supervise.proposals.outcomes import outcome_of

HOST = {"host": "api.example.com"}


@pytest.mark.parametrize(
    ("asked", "given", "missing"),
    [
        (HOST, HOST, None),
        ({"path_allowlist": ["/a", "/b"]}, {"path_allowlist": ["/a"]}, {"path_allowlist": ["/b"]}),
        ({"path_allowlist": ["/a/x"]}, {"path_allowlist": ["/a"]}, None),
        ({"path_allowlist": ["/ab"]}, {"path_allowlist": ["/a"]}, {"path_allowlist": ["/ab"]}),
        ({"path_allowlist": ["/a"]}, {}, None),
        ({}, {"path_allowlist": ["/a"]}, {"path_allowlist": "all"}),
        ({"methods": ["GET", "POST"]}, {"methods": ["GET"]}, {"methods": ["POST"]}),
        ({"methods": ["GET"]}, {"methods": []}, None),
        ({}, {"methods": ["GET"]}, {"methods": "all"}),
        ({}, {"lease": {"ttl_seconds": 60}}, {"lease": "no end"}),
        ({"lease": {"ttl_seconds": 60}}, {"lease": {"ttl_seconds": 30}}, {"lease": {"ttl_seconds": 60}}),
        ({"lease": {"ttl_seconds": 60}}, {"lease": {"ttl_seconds": 90}}, None),
        ({"lease": {"ttl_seconds": 60}}, {}, None),
        (
            {"lease": {"ttl_seconds": 60}},
            {"lease": {"ttl_seconds": 60, "max_uses": 1}},
            {"lease": {"ttl_seconds": 60}},
        ),
        ({"auth": {"scheme": "Bearer"}}, {}, {"auth": {"scheme": "Bearer"}}),
        ({"host": "*.example.com"}, HOST, {"host": "*.example.com"}),
    ],
)
def test_what_was_left_out(
    asked: dict[str, Any], given: dict[str, Any], missing: dict[str, Any] | None
) -> None:
    assert not_granted(asked, given) == missing


def test_what_was_ignored_is_named() -> None:
    assert not_granted(HOST, HOST, ignored=("auth",)) == {"ignored": ["auth"]}


@pytest.mark.parametrize(
    ("status", "tool", "applied", "begins", "is_final"),
    [
        ("rejected", "egress-block", "nothing", "Rejected: nothing changed.", True),
        ("withdrawn", "egress-block", "nothing", "Withdrawn: nothing changed.", True),
        ("expired", "egress-block", "nothing", "Expired: nobody decided in time", True),
        ("approved", "egress-block", "live", "The route is live in table version 7", True),
        ("modified", "egress-block", "live", "The operator changed your proposal:", True),
        ("approved", "egress-block", "waiting", "Approved, and being applied.", False),
        ("approved", "egress-block", "failed", "Approved, but not live: disk full.", True),
        ("approved", "pipelock-block", "live", "a.example.com is on the gate's allowlist (version 7)", True),
        ("approved", "capability-block", "recorded", "The approved Dockerfile is recorded.", True),
    ],
)
def test_each_ending_is_explained(
    status: str, tool: str, applied: str, *, begins: str, is_final: bool
) -> None:
    proposal = Proposal(tool=tool, status=status)
    decision = Decision(
        status=status,
        applied=applied,
        live_version=7,
        apply_error="disk full",
        granted={"host": "a.example.com"},
    )
    outcome = outcome_of(proposal, decision)
    assert outcome.explanation.startswith(begins)
    assert outcome.is_final is is_final


def test_an_open_proposal_says_what_to_do_meanwhile() -> None:
    outcome = outcome_of(Proposal(tool="egress-block", status="pending"), None)
    assert not outcome.is_final
    assert "check-proposal" in outcome.explanation
