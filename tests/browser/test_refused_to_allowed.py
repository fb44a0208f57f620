"""From a refused request to the same request allowed, with curl, MCP and a person at the real page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import Window
from tests.browser.island import ORIGIN, Island
from tests.browser.test_queue_page import answer_to, card_about, open_panel, said

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


def test_what_curl_is_refused_it_gets_as_soon_as_an_operator_says_yes(
    window: Window, island: Island, origin: None
) -> None:
    bottle = island.server.create_bottle("curl-bot")
    page = window()

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
    assert waiting.poll() is None, "the call waits for the operator"

    assert "→ live v2 in" in approve(page, ORIGIN)
    answer = answer_to(waiting)
    assert island.curl(bottle, URL) == (200, "the origin answers for /docs/guide?page=2\n"), "at once"
    assert answer["content"][0]["text"].startswith("status: approved")
    assert (answer["isError"], answer["structuredContent"]["live_version"]) == (False, 2)

    assert refusal(island, bottle, f"https://{ORIGIN}/elsewhere")["reason"] == "path"
    shown = answer_to(island.ask(bottle, "list-egress-routes"))["structuredContent"]
    assert (shown["source"], shown["version"]) == ("proxy", 2)
    assert [route["host"] for route in shown["routes"]] == [ORIGIN]


def test_an_operator_allows_what_was_refused_before_anybody_asks(
    window: Window, island: Island, origin: None
) -> None:
    bottle = island.server.create_bottle("shy-bot")
    assert refusal(island, bottle, URL)["reason"] == "no-route"
    page = window()
    line = page.locator(".drafts .line-item", has_text="shy-bot")
    for _ in range(50):  # records are read in batches, a moment later
        if line.count():
            break
        page.wait_for_timeout(100)
        page.reload()
    page.get_by_text("Refused, nobody asked yet").click()
    line.get_by_role("link", name="Look…").click()
    assert f"GET on {ORIGIN} under /docs/guide" in page.locator(".effects").inner_text()
    page.get_by_role("button", name="File and approve").click()
    assert f"Approved: {ORIGIN} for shy-bot → live v2 in" in said(page)
    assert island.curl(bottle, URL)[0] == 200


def test_another_bottle_still_gets_nothing(island: Island, origin: None) -> None:
    other = island.server.create_bottle("other-bot")
    assert refusal(island, other, URL)["reason"] == "no-route"


def test_the_operator_sees_the_refusal_on_the_bottles_page(
    window: Window, island: Island, origin: None
) -> None:
    bottle = island.server.create_bottle("seen-bot")
    refusal(island, bottle, f"https://{ORIGIN}/secret-plans?token=never-shown")
    page = window()
    page.goto(f"{island.server.console_url}/admin/botbottle/bottle/?q=seen-bot")
    page.get_by_role("link", name="seen-bot").click()
    line = page.get_by_text(f"GET https://{ORIGIN}/secret-plans")
    for _ in range(50):  # records are read in batches, a moment later
        if line.count():
            break
        page.wait_for_timeout(100)
        page.reload()
    assert "no-route" in line.locator("..").inner_text()
    assert "never-shown" not in page.content()


@pytest.mark.parametrize("script", [True, False], ids=["script", "plain"])
@pytest.mark.parametrize("look", [("light", 1280), ("dark", 390)], ids=["wide-light", "phone-dark"])
def test_what_was_refused_and_never_asked_for_is_opened_from_the_queue(
    window: Window, island: Island, origin: None, look: tuple[str, int], script: bool
) -> None:
    scheme, width = look
    bottle = island.server.create_bottle(f"silent-{width}-{'script' if script else 'plain'}")
    refusal(island, bottle, URL)
    page = window(color_scheme=scheme, viewport={"width": width, "height": 844}, java_script_enabled=script)
    line = page.locator(".drafts li", has_text=bottle["slug"])
    for _ in range(50):  # records are read in batches, a moment later
        if line.count():
            break
        page.wait_for_timeout(100)
        page.reload()
    page.locator(".drafts summary").click()
    line.get_by_role("link", name="Look").click()
    assert "refused, and its agent has not asked" in page.locator("article").inner_text()
    page.get_by_role("button", name="File and approve").click()
    assert "→ live" in page.locator(".messagelist").inner_text()
    assert island.curl(bottle, URL) == (200, "the origin answers for /docs/guide?page=2\n")
