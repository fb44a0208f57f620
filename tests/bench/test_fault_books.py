"""The check of the books finds each kind of contradiction, and nothing in true books."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from bench.fault_parts.books import contradictions
from supervise.models import Decision, Proposal
from supervise.proposals import decisions
from tests.support import ROOT
from tests.support.proposals import ask, seen

HOST, PATH = "h0.example.com", "/agent-a/1"


@pytest.fixture
def decided(agent_a, operator, db) -> Proposal:
    proposal = ask(agent_a, HOST, path_allowlist=[PATH])
    decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))
    Decision.objects.filter(proposal=proposal).update(applied=Decision.Applied.LIVE)
    return proposal


def evidence(proposal: Proposal, **other: Any) -> dict[str, Any]:
    routes = [{"host": HOST, "path_allowlist": [PATH]}]
    return {
        "told": [[str(proposal.pk), "approved", 2]],
        "decided": [[str(proposal.pk), "approve", 200], [str(proposal.pk), "reject", 409]],
        "origin": [[HOST, PATH]],
        "live": {"agent-a": {"routes": routes}},
        **other,
    }


def test_true_books_are_true(decided: Proposal) -> None:
    assert list(contradictions(evidence(decided))) == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"told": [["PROPOSAL", "rejected", None]]}, "is rejected; it is approved"),
        ({"told": [["00000000-0000-0000-0000-000000000000", "pending", None]]}, "which does not exist"),
        ({"decided": [["PROPOSAL", "reject", 200]]}, "told that reject of"),
        ({"decided": [["PROPOSAL", "approve", 200]] * 2}, "was decided 2 times"),
        ({"origin": [[HOST, "/agent-a/never-asked-for"]]}, "no table of agent-a ever allowed it"),
        ({"live": {"agent-a": {"routes": []}}}, "the proxy does not serve it"),
    ],
)
def test_what_the_outside_saw_is_compared(decided: Proposal, other: dict[str, Any], said: str) -> None:
    filled = evidence(decided, **_with_id(other, str(decided.pk)))
    (found,) = contradictions(filled)
    assert said in found


def test_a_status_without_a_decision_is_found(decided: Proposal) -> None:
    Proposal.objects.filter(pk=decided.pk).update(status=Proposal.Status.PENDING)
    found = list(contradictions(evidence(decided, told=[], decided=[])))
    assert [line.endswith("is pending, and has a decision") for line in found] == [True]


def test_an_approval_that_is_not_live_is_found(decided: Proposal) -> None:
    Decision.objects.filter(proposal=decided).update(
        applied=Decision.Applied.FAILED, apply_error="the disk is full"
    )
    (found,) = contradictions(evidence(decided))
    assert found.endswith("is approved and not live: the disk is full")


def _with_id(value: Any, proposal: str) -> Any:
    if isinstance(value, dict):
        return {key: _with_id(part, proposal) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_id(part, proposal) for part in value]
    return proposal if value == "PROPOSAL" else value


@pytest.mark.process
@pytest.mark.slow
def test_a_few_rounds_of_faults_leave_true_books() -> None:
    finished = subprocess.run(
        [sys.executable, "bench/faults.py", "--rounds", "4", "--only", "sqlite"],
        cwd=ROOT, text=True, capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "bar met: 0 contradictions" in finished.stdout
