"""A kind of proposal is one class: a toy one goes from the call to the card, the decision and the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from botbottle.models import Bottle
from supervise.bottles import records as bottles
from supervise.models import Decision, Proposal
from supervise.proposals import kind as registry
from supervise.proposals.kind import WAITS, Context, Json, Kind, Preview
from supervise.proposals.risk import Level, Risk
from tests.supervise.mcp.conftest import Agent

pytestmark = pytest.mark.django_db(transaction=True)


class CoffeeBlock(Kind):
    """An agent asks for a cup of coffee."""

    name = "coffee-block"
    noun = "a cup of coffee"
    shown_keys = ("cups",)
    diff_name = "Table"
    title = "Ask for coffee"
    description = f"Ask for coffee. {WAITS}"
    properties = {"cups": {"type": "integer", "minimum": 1}}
    required = ("cups",)

    def parse(self, bottle: Bottle, arguments: Mapping[str, Any]) -> Json:
        if arguments.get("cups") not in (1, 2):
            raise ValueError("cups must be 1 or 2")
        return {"cups": arguments["cups"]}

    def target(self, payload: Json) -> str:
        return f"coffee, {payload['cups']} cups"

    def summary(self, payload: Json) -> str:
        return f"bring {payload['cups']} cups of <coffee>"

    def preview(self, proposal: Proposal, payload: Json, context: Context, *, by_operator: bool) -> Preview:
        return Preview(
            before="",
            after=f"{payload['cups']} cups",
            effects=("the kettle is switched on",),
            risk=Risk.of([(Level.MEDIUM, "coffee is hot")]),
        )

    def explain(self, decision: Decision) -> str:
        return "The coffee is on its way."


@pytest.fixture
def coffee() -> Iterator[CoffeeBlock]:
    kind = CoffeeBlock()
    registry.register(kind)
    yield kind
    del registry._kinds[kind.name]


@pytest.fixture
def agent() -> Agent:
    credentials = bottles.create("agent-a", author="tests")
    return Agent(credentials.bottle, credentials.token)


@pytest.fixture
def olivia(operator: User) -> Client:
    client = Client()
    client.force_login(operator)
    return client


def approve(client: Client, proposal: Proposal) -> str:
    """As a browser does: with the hidden fields of the form that the page shows."""
    page = client.get(f"/proposals/{proposal.pk}/").text
    form = re.search(rf'action="/proposals/{proposal.pk}/approve"[^>]*>(.*?)</form>', page, re.DOTALL)
    assert form is not None
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form[1]))
    answer = client.post(f"/proposals/{proposal.pk}/approve", {**fields, "note": "with milk"}, follow=True)
    assert answer.status_code == 200
    return str(answer.text)


def test_it_goes_from_the_tool_call_to_the_answer(coffee: CoffeeBlock, agent: Agent, olivia: Client) -> None:
    tools = {tool["name"]: tool for tool in agent.call("tools/list")["result"]["tools"]}
    assert tools["coffee-block"]["inputSchema"]["required"] == ["cups", "justification"]

    task = agent.ask_task("coffee-block", cups=2, justification="I am tired.")
    proposal = Proposal.objects.get(pk=task["taskId"])
    assert (proposal.tool, proposal.payload, proposal.is_pending) == ("coffee-block", {"cups": 2}, True)
    answer = agent.tool("check-proposal", {"proposal_id": str(proposal.pk)})["result"]
    assert answer["structuredContent"]["status"] == "pending"

    queue = olivia.get("/?tool=coffee-block").text
    for words in (
        "coffee, 2 cups",
        "bring 2 cups of &lt;coffee&gt;",
        "coffee is hot",
        "medium",
        "I am tired.",
    ):
        assert words in queue
    assert "open=modify" not in queue, "there is no form that modifies it"
    page = olivia.get(f"/proposals/{proposal.pk}/").text
    for words in ("the kettle is switched on", "Table, before and after", "/approve"):
        assert words in page

    assert "Approved: coffee, 2 cups for agent-a, and recorded." in approve(olivia, proposal)
    decision = Decision.objects.get(proposal=proposal)
    assert (decision.tool, decision.status, decision.applied) == ("coffee-block", "approved", "recorded")
    assert "bring 2 cups of &lt;coffee&gt;" in olivia.get("/history/").text

    answer = agent.tool("check-proposal", {"proposal_id": str(proposal.pk)})["result"]
    told = answer["structuredContent"]
    assert (told["status"], told["granted"], told["notes"]) == ("approved", {"cups": 2}, "with milk")
    assert "The coffee is on its way." in answer["content"][0]["text"]


def test_an_ask_that_is_wrong_is_refused_with_its_sentence(coffee: CoffeeBlock, agent: Agent) -> None:
    answer = agent.tool("coffee-block", {"cups": 9, "justification": "x"})["result"]
    assert answer["isError"]
    assert answer["content"][0]["text"] == "cups must be 1 or 2. Nothing was queued."
    assert not Proposal.objects.exists()


def test_what_cannot_be_modified_says_so(coffee: CoffeeBlock, agent: Agent, olivia: Client) -> None:
    proposal = agent.ask_task("coffee-block", cups=1, justification="x")["taskId"]
    answer = olivia.post(f"/proposals/{proposal}/modify", {"seen_digest": "", "cups": "2"})
    assert answer.status_code == 400
    assert "This proposal cannot be modified" in answer.text
    assert Proposal.objects.get().is_pending


def test_it_is_in_the_sessions_context(coffee: CoffeeBlock, agent: Agent) -> None:
    agent.ask_task("coffee-block", cups=1, justification="x")
    context = agent.call("session/context", {"depth": "deep"})["result"]
    assert context["l1"]["open"][0]["target"] == "a cup of coffee"


def test_two_kinds_cannot_have_one_name(coffee: CoffeeBlock) -> None:
    with pytest.raises(ValueError, match="two kinds"):
        registry.register(CoffeeBlock())


def test_without_the_kind_there_is_no_such_tool(agent: Agent) -> None:
    refused = agent.call("tools/call", {"name": "coffee-block", "arguments": {"cups": 1}})
    assert "Unknown tool 'coffee-block'" in refused["error"]["message"]
