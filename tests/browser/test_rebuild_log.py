"""A build log in Chromium: it grows on the open page and on the queue's card, as text, and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.browser.conftest import Bottles, Window
from tests.support.image_build import Building, building
from tests.support.isolated_browser import Island
from tests.support.proposals import HOSTILE
from tests.support.timeouts import wait_until
from tests.support.viewports import Viewport

pytestmark = [pytest.mark.browser, pytest.mark.process]
LOG = ".rebuild pre.log"
KEEP_SOCKETS = """
window.sockets = [];
window.WebSocket = class extends WebSocket {
  constructor(...given) {
    super(...given);
    window.sockets.push(this);
  }
};
"""
_numbers = count(1)
ACTIVE = "<img src=x onerror=document.title='owned'> <b>bold</b>"


@pytest.fixture
def builder(island: Island, bottles: Bottles) -> Iterator[Building]:
    slug = bottles(f"built-{next(_numbers)}")["slug"]
    with building(island.server, slug) as made:
        made.say("Step 1/2 : FROM debian:12")
        yield made


def shown(page: Any) -> str:
    return str(page.inner_text(LOG))


def wait_for(page: Any, text: str) -> None:
    wait_until(lambda: page.wait_for_timeout(50) or text in shown(page), what=text)


def test_the_log_grows_on_the_open_page_without_a_reload(
    window: Window, island: Island, builder: Building
) -> None:
    page = window()
    page.goto(f"{island.server.console_url}/proposals/{builder.proposal}/")
    page.evaluate("document.body.dataset.same = 'page'")
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    for number in range(40):
        builder.say(f"line {number}", ACTIVE, HOSTILE)
    wait_for(page, "line 39")
    assert fetched == [], "the log is not asked for again and again"
    text = shown(page)
    assert [line for line in text.splitlines() if line.startswith(("Step", "line"))] == [
        "Step 1/2 : FROM debian:12",
        *(f"line {number}" for number in range(40)),
    ]
    assert text.count(ACTIVE) == 40 and page.locator(f"{LOG} img, {LOG} b, {LOG} script").count() == 0
    assert "owned" not in page.title() and "⟦U+202E⟧" in text and "\x1b" not in text
    end = page.eval_on_selector(LOG, "log => log.scrollHeight - log.scrollTop - log.clientHeight")
    assert end < 40, "it stays at its end"
    page.evaluate(f"document.querySelector('{LOG}').scrollTop = 0")
    builder.say("Successfully built", phase="canary")
    page.wait_for_selector(".rebuild li[data-word=now]:has-text('canary')")
    wait_for(page, "Successfully built")
    assert page.eval_on_selector(LOG, "log => log.scrollTop") == 0, "who reads is not carried away"
    builder.say(phase="live")
    page.wait_for_selector(".rebuild:not([data-running]) button:has-text('Roll back')")
    assert shown(page).count("line 39\n") == 1
    assert page.evaluate("document.body.dataset.same") == "page"


def test_a_card_in_the_queue_shows_it_too_and_goes_on_after_a_lost_connection(
    window: Window, island: Island, builder: Building
) -> None:
    page = window()
    page.add_init_script(KEEP_SOCKETS)
    page.reload()
    # The card as it is once somebody decided: fetched by the queue, put in its place.
    page.evaluate(
        """async ([address]) => {
          const answer = await fetch(address, { headers: { "X-Fragment": "1" } });
          const made = new DOMParser().parseFromString(await answer.text(), "text/html");
          document.getElementById("cards").append(document.adoptNode(made.querySelector(".card")));
        }""",
        [f"/queue/cards?id={builder.proposal}"],
    )
    wait_for(page, "Step 1/2")
    builder.say("before")
    wait_for(page, "before")
    page.evaluate("sockets.find((each) => each.url.endsWith('/ws/rebuild-log/')).close()")
    builder.say("meanwhile")
    builder.say("after")
    wait_for(page, "after")
    assert shown(page).splitlines() == ["Step 1/2 : FROM debian:12", "before", "meanwhile", "after"]
    assert page.evaluate("sockets.filter((each) => each.url.endsWith('/ws/rebuild-log/')).length") == 2
    page.click(".rebuild summary:has-text('Build log')")
    assert not page.is_visible(LOG) and not page.is_visible("#sheet"), "a click in the panel is for the panel"


def test_without_script_a_reload_shows_how_far_it_is(
    window: Window, island: Island, builder: Building
) -> None:
    page = window(look=Viewport(script=False))
    page.goto(f"{island.server.console_url}/proposals/{builder.proposal}/")
    assert shown(page).strip() == "Step 1/2 : FROM debian:12"
    assert "Reload this page to see the progress." in page.content()
    builder.say("more")
    page.reload()
    assert shown(page).splitlines()[-1] == "more"
