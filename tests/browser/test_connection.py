"""The live page when the server is silent, gone, or flooded, and when somebody is signed out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.browser.conftest import RESTING_PLACE, Asked, Window
from tests.support import PROGRAMS
from tests.support.console_page import Agent, card_about, fits, reject, text_of
from tests.support.isolated_browser import Island
from tests.support.server import stop
from tests.support.server_shell import Errands
from tests.support.viewports import SCRIPTED, Viewport, on_the_desk, with_script_and_without

pytestmark = [pytest.mark.browser, pytest.mark.process]
ENOUGH_FOR_A_PAGE = 5000  # elements, with a full queue on it


def web_worker(island: Island) -> int:
    children = ["pgrep", "-P", str(island.server.process.pid)]
    return int(subprocess.run(children, capture_output=True, check=True).stdout.split()[0])


@on_the_desk
def test_a_server_that_says_nothing_makes_the_page_stale(
    window: Window, island: Island, look: Viewport
) -> None:
    page = window(look=look, is_fresh=True)
    page.clock.install()
    page.reload()
    page.wait_for_selector("#connection[data-state=connected]")
    worker = web_worker(island)
    os.kill(worker, signal.SIGSTOP)
    try:
        page.clock.fast_forward(60_000)
        page.wait_for_selector("#connection[data-state=stale]")
        assert fits(page)
    finally:
        os.kill(worker, signal.SIGCONT)
    page.wait_for_selector("#connection[data-state=connected]")


def test_it_reconnects_and_catches_up_in_every_look(window: Window, agent: Agent, island: Island) -> None:
    """All looks at once: one server goes away for all of them."""
    pages = [window(look=look) for look in SCRIPTED]
    os.kill(web_worker(island), signal.SIGTERM)
    for page in pages:
        page.wait_for_selector("#connection[data-state=disconnected]")
    for page in pages:
        page.wait_for_selector("#connection[data-state=connected]")
    call = agent.asks("afterwards.example.com")
    for page in pages:
        card_about(page, "afterwards.example.com")
    reject(pages[0], "afterwards.example.com")
    text_of(call)


@on_the_desk
def test_who_is_signed_out_is_told(window: Window, agent: Agent, look: Viewport) -> None:
    page = window(look=look, is_fresh=True)
    page.context.clear_cookies()
    call = agent.asks("signed-out.example.com")
    page.wait_for_selector("#connection[data-state=signed-out]")
    assert page.locator("h2", has_text="signed-out.example.com").count() == 0
    assert fits(page)
    other = window(look=look)
    reject(other, "signed-out.example.com")
    text_of(call)


@with_script_and_without
def test_signing_out_is_one_press(window: Window, signed_in: dict[str, Any], script: Viewport) -> None:
    signed_in.pop("otto", None)  # the session that ends is one of its own
    page = window("otto", look=script, is_fresh=True)
    signed_in.pop("otto")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/logout/")
    assert page.locator(".console-nav").count() == 0


# A bottle that goes away ends its proposals one by one, which takes most of a minute for so many.
END_AT_ONCE = """
from supervise.models import Proposal
Proposal.objects.filter(bottle__slug__startswith="flood-", status="pending").update(status="expired")
"""


def test_500_pending_and_50_arrivals_a_second_leave_the_page_usable(
    window: Window, asked: Asked, island: Island, errands: Errands
) -> None:
    leased = {"lease": {"ttl_seconds": 600}}
    asked("flood-a", 490, "old", **leased)
    bottle = asked("flood-b", 10, "older", **leased)
    page = window()
    page.evaluate("window.stayed = true")
    assert page.locator("article.card").count() == 50
    first = page.locator("article.card").first
    name, place = first.locator("h2").inner_text(), first.bounding_box()
    flood = subprocess.Popen(
        island.inside(sys.executable, str(PROGRAMS / "mcp_flood.py")),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=island.server.environment,
    )  # fmt: skip
    try:
        assert flood.stdin and flood.stdout
        plan = {"url": bottle["mcp_url"], "token": bottle["token"], "calls": 250, "a_second": 50, "hold": 300}
        flood.stdin.write(json.dumps(plan))
        flood.stdin.close()
        flood.stdin = None
        page.locator("#new-cards", has_text="new: show").wait_for()
        page.keyboard.press("j")
        page.keyboard.press("o")  # in the middle of it
        page.wait_for_selector("#sheet[open] .detail")
        page.keyboard.press("Escape")
        assert flood.stdout.readline() == "sent\n"
        page.locator("#pending-count:text-matches('7[45][0-9]')").wait_for()
        page.locator("#new-cards:text-is('250 new: show')").wait_for()
        assert page.locator("article.card").count() == 50
        assert page.evaluate("document.querySelectorAll('*').length") < ENOUGH_FOR_A_PAGE
        assert first.locator("h2").inner_text() == name
        first.wait_for()  # it may just be drawn anew
        assert (first.bounding_box() or place)["x"] == place["x"]
        assert page.evaluate("window.stayed"), "without a reload"
        page.locator("#new-cards").click()
        page.locator("#after strong:text-matches('7[0-9][0-9]|69[0-9]')").wait_for()
        assert page.locator("article.card").count() == 50
        page.goto(island.server.console_url + RESTING_PLACE)  # or it would follow how 750 proposals go away
    finally:
        stop(flood)
        if flood.stdout:
            flood.stdout.close()
        errands.run(END_AT_ONCE)
