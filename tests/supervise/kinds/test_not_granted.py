"""What the agent is told that it did not get, where nothing but one thing can differ."""

from __future__ import annotations

from typing import Any

import pytest

from botbottle.models import Bottle
from tests.support.proposals import ask_gate, ask_image

pytestmark = pytest.mark.django_db


def test_another_dockerfile_is_not_the_one_that_was_asked(agent_a: Bottle, modify: Any) -> None:
    decision = modify(ask_image(agent_a, "FROM a:1\n"), dockerfile="FROM b:1\n")
    assert decision.not_granted == {"dockerfile": "FROM a:1\n"}


def test_the_same_dockerfile_is(agent_a: Bottle, modify: Any) -> None:
    assert modify(ask_image(agent_a, "FROM a:1\n"), dockerfile="FROM a:1\n").not_granted is None


def test_another_url_of_the_same_host_at_the_gate_is_all_that_was_asked(agent_a: Bottle, modify: Any) -> None:
    proposal = ask_gate(agent_a, "https://gate.example.com/x")
    assert modify(proposal, failed_url="https://gate.example.com/").not_granted is None
