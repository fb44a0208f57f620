"""The strip of bottles on the live page."""

from __future__ import annotations

from typing import Any

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from botbottle.core.sanitize import without_nul
from botbottle.models import Bottle
from egress.models import Publication
from supervise.bottles import records as bottles
from supervise.console.bottle_queries import TROUBLED, bottles_overview
from tests.support.proposals import HOSTILE, ask

STRIP = "/bottles/_strip/"


def set_state(slug: str, **columns: Any) -> None:
    assert Bottle.objects.filter(slug=slug).update(**columns) == 1


def test_it_shows_bottles_their_state_and_what_is_wrong(olivia: Client) -> None:
    assert "bottle init" in olivia.get(STRIP).text
    for slug in ("one", "two", "three", "gone"):
        bottles.create(slug, author="tests")
    bottles.delete("gone", author="tests")
    set_state("two", state="running")
    set_state("one", state="starting")
    set_state("three", state="stopped", exit_code=42, problem="no image", backend_problem="docker is away")
    ask(bottles.get("one"))
    page = olivia.get(STRIP).text
    assert "bottles running: <strong>1</strong>" in page and "of 3" in page
    assert page.index(">two<") < page.index(">three<"), "what runs comes first"
    for text in ("exit code 42", "no image", "docker is away", "1 pending"):
        assert text in page
    assert ">gone<" not in page


def test_what_a_build_printed_is_inert_there(olivia: Client, agent_a: Bottle) -> None:
    set_state("agent-a", problem=without_nul(HOSTILE))
    page = olivia.get(STRIP).text
    assert "<script>" not in page and "\u202e" not in page


def test_a_viewer_sees_no_link_that_leads_nowhere(vera: Client, olivia: Client, agent_a: Bottle) -> None:
    assert f"/bottles/{agent_a.slug}/" not in vera.get(STRIP).text
    assert f"/bottles/{agent_a.slug}/" in olivia.get(STRIP).text


def test_of_many_in_trouble_it_names_some(olivia: Client) -> None:
    for number in range(TROUBLED + 1):
        bottles.create(f"b{number}", author="tests")
    bottles.create("gone", author="tests")
    Publication.objects.update(proxy_problems=["gate.yaml is missing.", "There is no secret X."])
    bottles.delete("gone", author="tests")
    page = olivia.get(STRIP).text
    assert page.count("gate.yaml is missing.") == page.count("There is no secret X.") == TROUBLED
    assert "More bottles have such problems" in page
    Publication.objects.filter(bottle__slug="b0").update(proxy_problems=[])
    page = olivia.get(STRIP).text
    assert page.count("gate.yaml is missing.") == TROUBLED and "More bottles" not in page


def test_it_is_bounded_and_costs_three_queries(db: None) -> None:
    for number in range(5):
        bottles.create(f"b{number}", author="tests")
    with CaptureQueriesContext(connection) as asked:
        overview = bottles_overview(limit=3)
    assert len(asked) == 3
    assert (len(overview["shown"]), overview["not_shown"], overview["total"]) == (3, 2, 5)
