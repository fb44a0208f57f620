"""From a refused request to the same request allowed, with curl, MCP and a person at the real page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import Bottles, Window
from tests.support.console_page import card_about, fits, fits_every_look, open_panel, said, until
from tests.support.isolated_browser import ORIGIN, Island
from tests.support.viewports import Viewport, with_script_and_plain_phone, with_script_and_without

pytestmark = [pytest.mark.browser, pytest.mark.process]
URL = f"https://{ORIGIN}/docs/guide?page=2"


@pytest.fixture(scope="module")
def origin(island: Island) -> Iterator[None]:
    with island.origin():
        yield


def refusal(island: Island, bottle: dict[str, str], url: str) -> dict[str, Any]:
    status, body = island.curl(bottle, url)
    assert status == 403, body
    return dict(json.loads(body))


def approve(page: Any, host: str) -> str:
    panel = open_panel(card_about(page, host), "Approve")
    panel.get_by_role("button", name="Approve as asked").click()
    return said(page)


@with_script_and_plain_phone
def test_what_curl_is_refused_it_gets_as_soon_as_an_operator_says_yes(
    window: Window, island: Island, bottles: Bottles, origin: None, look: Viewport
) -> None:
    bottle = bottles(f"curl-{look}")
    page = window(look=look)

    refused = refusal(island, bottle, URL)
    assert (refused["reason"], refused["host"], refused["method"], refused["path"]) == (
        "no-route", ORIGIN, "GET", "/docs/guide",
    )  # fmt: skip
    call = refused["ask"]
    assert call["tool"] == "egress-block"
    assert call["arguments"] == {
        "host": ORIGIN,
        "path_allowlist": ["/docs/guide"],
        "methods": ["GET"],
        "justification": f"GET https://{ORIGIN}/docs/guide was refused (no-route).",
    }

    waiting = island.ask(bottle, call["tool"], **call["arguments"])
    card = card_about(page, ORIGIN)
    assert f"GET on {ORIGIN} under /docs/guide" in card.inner_text()
    assert refusal(island, bottle, URL)["reason"] == "no-route", "asking alone opens nothing"
    assert waiting.waits, "the call waits for the operator"

    assert "→ live v2 in" in approve(page, ORIGIN)
    answer = waiting.result()
    assert island.curl(bottle, URL) == (200, "the origin answers for /docs/guide?page=2\n"), "at once"
    assert answer["content"][0]["text"].startswith("status: approved")
    assert (answer["isError"], answer["structuredContent"]["live_version"]) == (False, 2)

    assert refusal(island, bottle, f"https://{ORIGIN}/elsewhere")["reason"] == "path"
    shown = island.ask(bottle, "list-egress-routes").result()["structuredContent"]
    assert (shown["source"], shown["version"]) == ("proxy", 2)
    assert [route["host"] for route in shown["routes"]] == [ORIGIN]


def test_another_bottle_still_gets_nothing(island: Island, bottles: Bottles, origin: None) -> None:
    other = bottles("other-bot")
    assert refusal(island, other, URL)["reason"] == "no-route"


@with_script_and_without
def test_the_operator_sees_the_refusal_on_the_bottles_page(
    window: Window, island: Island, bottles: Bottles, origin: None, script: Viewport
) -> None:
    bottle = bottles(f"seen-{script}")
    refusal(island, bottle, f"https://{ORIGIN}/secret-plans?token=never-shown")
    page = window(look=script)
    page.goto(f"{island.server.console_url}/admin/botbottle/bottle/?q={bottle['slug']}")
    page.get_by_role("link", name=bottle["slug"], exact=True).click()
    line = until(page, page.get_by_text(f"GET https://{ORIGIN}/secret-plans"))
    assert "no-route" in line.locator("..").inner_text()
    assert "never-shown" not in page.content()
    fits_every_look(page)


@with_script_and_plain_phone
def test_what_was_refused_and_never_asked_for_is_opened_from_the_queue(
    window: Window, island: Island, bottles: Bottles, origin: None, look: Viewport
) -> None:
    bottle = bottles(f"silent-{look}")
    refusal(island, bottle, URL)
    page = window(look=look)
    line = until(page, page.locator(".drafts li", has_text=bottle["slug"]))
    page.locator(".drafts summary").click()
    line.get_by_role("link", name="View").click()
    assert "refused, and its agent did not ask" in page.locator("article").inner_text()
    assert f"GET on {ORIGIN} under /docs/guide" in page.locator(".effects").inner_text()
    assert fits(page)
    page.get_by_role("button", name="Submit and approve").click()
    assert f"Approved: {ORIGIN} for {bottle['slug']} → live v2 in" in said(page)
    assert island.curl(bottle, URL) == (200, "the origin answers for /docs/guide?page=2\n")
