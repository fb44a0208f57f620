"""The tasks extension: a proposal as a task, for clients that declare it, on any worker."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from mcp_types import methods

from supervise.models import Proposal
from supervise.proposals import decisions, queries
from tests.supervise.mcp.conftest import MODERN, TASKS, Agent, modern_message

# What is decided is applied on commit.
pytestmark = pytest.mark.django_db(transaction=True)
ASK = {"host": "api.example.com", "path_allowlist": ["/a", "/b"], "justification": "because"}
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def seen(task: dict[str, Any]) -> str:
    return queries.review_of(queries.get_proposal(task["taskId"])).seen_digest


def test_an_ask_becomes_a_task_when_the_request_declares_it(agent: Agent) -> None:
    task = agent.ask_task(**ASK)
    assert set(task) == {
        "resultType", "taskId", "status", "statusMessage", "createdAt", "lastUpdatedAt",
        "ttlMs", "pollIntervalMs", "_meta",
    }  # fmt: skip
    assert (task["resultType"], task["status"], task["ttlMs"]) == ("task", "working", None)
    assert task["pollIntervalMs"] > 0
    assert TIMESTAMP.fullmatch(task["createdAt"])
    assert TIMESTAMP.fullmatch(task["lastUpdatedAt"])
    assert str(Proposal.objects.get().pk) == task["taskId"]


def test_the_same_ask_again_is_the_same_task(agent: Agent) -> None:
    assert agent.ask_task(**ASK)["taskId"] == agent.ask_task(**ASK)["taskId"]
    assert Proposal.objects.count() == 1


@pytest.mark.parametrize("tool", ["list-egress-routes", "check-proposal"])
def test_an_immediate_tool_never_becomes_a_task(agent: Agent, tool: str) -> None:
    arguments = {} if tool == "list-egress-routes" else {"proposal_id": agent.ask_task(**ASK)["taskId"]}
    params = {"name": tool, "arguments": arguments, "task": {"ttl": 1}}
    body, headers = modern_message("tools/call", params, capabilities=TASKS)
    result = agent.post(body, **headers).json()["result"]
    assert result["resultType"] == "complete"
    assert "taskId" not in result


def test_a_working_task_has_no_result(agent: Agent) -> None:
    task = agent.ask_task(**ASK)
    got = agent.task_method("tasks/get", taskId=task["taskId"])["result"]
    assert (got["resultType"], got["status"], got["taskId"]) == ("complete", "working", task["taskId"])
    assert not {"result", "error", "inputRequests", "requestState"} & set(got)


def test_an_approved_task_is_completed_with_the_tools_result(agent: Agent, operator: User) -> None:
    task = agent.ask_task(**ASK)
    decisions.approve(task["taskId"], actor=operator, seen_digest=seen(task), note="fine")
    got = agent.task_method("tasks/get", taskId=task["taskId"])["result"]
    assert got["status"] == "completed"
    assert got["lastUpdatedAt"] >= got["createdAt"]
    result = got["result"]
    assert result["content"][0]["text"].startswith("status: approved\nnotes: fine\n")
    assert result["structuredContent"]["granted"]["path_allowlist"] == ["/a", "/b"]
    assert isinstance(result["structuredContent"]["live_version"], int)
    methods.validate_server_result("tools/call", MODERN, result)


def test_a_rejected_task_is_completed_with_an_error_result(agent: Agent, operator: User) -> None:
    task = agent.ask_task(**ASK)
    decisions.reject(task["taskId"], actor=operator, seen_digest=seen(task), note="not today")
    got = agent.task_method("tasks/get", taskId=task["taskId"])["result"]
    assert (got["status"], got["result"]["isError"]) == ("completed", True)
    assert "error" not in got


def test_cancelling_a_task_withdraws_the_proposal_and_may_be_repeated(agent: Agent) -> None:
    task = agent.ask_task(**ASK)
    for _ in range(2):
        answer = agent.task_method("tasks/cancel", taskId=task["taskId"])["result"]
        assert set(answer) == {"resultType", "_meta"}
        assert answer["resultType"] == "complete"
    assert agent.task_method("tasks/get", taskId=task["taskId"])["result"]["status"] == "cancelled"
    assert Proposal.objects.get().status == "withdrawn"


def test_cancelling_a_decided_task_changes_nothing(agent: Agent, operator: User) -> None:
    task = agent.ask_task(**ASK)
    decisions.approve(task["taskId"], actor=operator, seen_digest=seen(task))
    assert agent.task_method("tasks/cancel", taskId=task["taskId"])["result"]["resultType"] == "complete"
    assert Proposal.objects.get().status == "approved"


@pytest.mark.parametrize("responses", [{}, {"approve": {"action": "accept", "content": {"approved": True}}}])
def test_a_clients_input_is_acknowledged_and_decides_nothing(agent: Agent, responses: Any) -> None:
    task = agent.ask_task(**ASK)
    answer = agent.task_method("tasks/update", taskId=task["taskId"], inputResponses=responses)["result"]
    assert set(answer) == {"resultType", "_meta"}
    assert Proposal.objects.get().status == "pending"


def test_input_responses_must_be_an_object(agent: Agent) -> None:
    task = agent.ask_task(**ASK)
    answer = agent.task_method("tasks/update", taskId=task["taskId"], inputResponses=[])
    assert answer["error"]["code"] == -32602


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
@pytest.mark.parametrize("task_id", ["nothing", "00000000-0000-4000-8000-000000000000", ""])
def test_an_unknown_task_is_invalid_params(agent: Agent, method: str, task_id: str) -> None:
    body, headers = modern_message(method, {"taskId": task_id}, capabilities=TASKS)
    response = agent.post(body, **headers)
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32602)


@pytest.mark.parametrize("task_id", [None, 5, ["x"]])
def test_a_task_id_of_another_type_is_invalid_params(agent: Agent, task_id: object) -> None:
    body, headers = modern_message("tasks/get", capabilities=TASKS)
    body["params"]["taskId"] = task_id
    assert agent.post(body, **headers).json()["error"]["code"] == -32602


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_another_bottles_task_does_not_exist(agent: Agent, other_agent: Agent, method: str) -> None:
    task = other_agent.ask_task(**ASK)
    assert agent.task_method(method, taskId=task["taskId"])["error"]["code"] == -32602
    assert Proposal.objects.get().status == "pending"


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_a_request_that_does_not_declare_tasks_is_told_what_it_lacks(agent: Agent, method: str) -> None:
    task = agent.ask_task(**ASK)
    for task_id in (task["taskId"], "unknown"):
        body, headers = modern_message(method, {"taskId": task_id})
        response = agent.post(body, **headers)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, -32021)
        assert error["data"] == {"requiredCapabilities": TASKS}
    assert Proposal.objects.get().status == "pending"
