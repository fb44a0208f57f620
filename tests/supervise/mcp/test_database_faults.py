"""A database at fault: agents get the reason, what became of their request, and when to try again."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.test import Client

from supervise.bottles import records as bottles
from supervise.models import Proposal
from supervise.proposals import queries
from tests.supervise.mcp.conftest import MODERN, Agent, ask, message, modern_message
from tests.support.database_fault import away, failing, full, locked, lost

AWAY = "The database cannot be reached. Nothing was changed. Try again in 5 s."
LOCKED = "The database was locked for too long. Nothing was changed. Try again in 1 s."


def test_a_call_is_a_503_with_the_reason_in_both_eras(agent: Agent) -> None:
    for body, headers in ((message("tools/list", {}, 7), {}), modern_message("tools/list", {}, 7)):
        with failing(away):
            response = agent.post(body, **headers)
        assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
        assert response.headers["Content-Type"] == "application/json"
        assert response.json()["error"] == {"code": -32010, "message": AWAY}


@pytest.mark.django_db(transaction=True)
def test_an_ask_that_the_database_refuses_is_not_queued_and_says_so() -> None:
    credentials = bottles.create("agent-a", author="tests")
    agent = Agent(credentials.bottle, credentials.token)
    for version in ("2025-11-25", MODERN):
        body, headers = message("tools/call", ask()["params"], 7), {"MCP-Protocol-Version": version}
        if version == MODERN:
            body, headers = modern_message("tools/call", ask()["params"], 7)
        with failing(locked, at="INSERT"):
            response = agent.post(body, **headers)
        assert response.status_code == 503
        assert response.json() == {"jsonrpc": "2.0", "id": 7, "error": {"code": -32010, "message": LOCKED}}
    assert not Proposal.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_what_may_have_arrived_is_not_called_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is lost after the proposal was committed."""
    credentials = bottles.create("agent-a", author="tests")
    agent = Agent(credentials.bottle, credentials.token)
    filed = queries.get_proposal

    def get_proposal(*arguments: Any, **named: Any) -> Any:
        filed(*arguments, **named)
        raise lost()

    monkeypatch.setattr(queries, "get_proposal", get_proposal)
    body, headers = modern_message(
        "tools/call",
        ask()["params"],
        capabilities={"extensions": {"io.modelcontextprotocol/tasks": {}}},
    )
    said = agent.post(body, **headers).json()["error"]["message"]
    assert Proposal.objects.exists()
    assert "Nothing was changed" not in said
    assert "Call check-proposal" in said
    assert "not queued twice" in said


def test_one_message_of_a_batch_has_its_own_refusal(agent: Agent) -> None:
    batch = [message("ping", {}, 1), message("tools/call", ask()["params"], 2)]
    with failing(full, at="INSERT"):
        response = agent.post(batch, **{"MCP-Protocol-Version": "2025-03-26"})
    assert response.status_code == 200
    answers = {answer["id"]: answer for answer in response.json()}
    assert answers[1]["result"] == {}
    assert "The disk of the database is full." in answers[2]["error"]["message"]


def test_rpc_and_the_session_context_are_bare_503s(agent: Agent) -> None:
    with failing(away):
        responses = [
            agent.post({"method": "tools/list"}, "/rpc"),
            Client(plane="agent").get("/session-context", headers=agent.headers()),
        ]
    for response in responses:
        assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
        assert response.json() == {"error": {"code": -32010, "message": AWAY}}


def test_a_method_that_fails_later_is_told_apart_from_errors_of_the_program(agent: Agent) -> None:
    with failing(lost, at="egress_routetableversion"):
        response = agent.post(message("tools/call", {"name": "list-egress-routes"}, 7))
    assert (response.status_code, response.json()["id"]) == (503, 7)
    assert "Nothing was changed." in response.json()["error"]["message"]


def test_a_fault_is_in_the_log_with_its_error_and_no_other_line(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    with failing(away):
        agent.post(message("tools/list"))
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [(record.name, bool(record.exc_info)) for record in errors] == [("supervise.mcp.views", True)]
