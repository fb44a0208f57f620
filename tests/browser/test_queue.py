"""The queue in Chromium: cards, order, header, what is new, what is decided elsewhere, filters, drafts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browser.conftest import Asked, Bottles, Window
from tests.support.console_page import (
    Agent,
    card_about,
    fits,
    fits_every_look,
    open_panel,
    reject,
    text_of,
    until,
)
from tests.support.isolated_browser import ORIGIN, Island
from tests.support.viewports import (
    Viewport,
    in_every_look,
    in_every_scripted_look,
    on_the_desk,
    with_script_and_plain_phone,
    with_script_and_without,
)

pytestmark = [pytest.mark.browser, pytest.mark.process]
LOW = {"path_allowlist": ["/x"], "methods": ["GET"], "lease": {"ttl_seconds": 60}}
HIGH = {"auth": {"scheme": "Bearer", "token_ref": "TOKEN"}}


@in_every_look
def test_cards_and_header_say_who_wants_what_and_how_risky_it_is(
    window: Window, agent: Agent, look: Viewport
) -> None:
    low, high = agent.asks("low.example.org", **LOW), agent.asks("high.example.org", **HIGH)
    page = window(look=look)
    card = card_about(page, "low.example.org")
    again = agent.asks("low.example.org", **LOW)
    until(page, page.locator("article.card", has_text="asked 2 times"))
    shown = card.inner_text()
    assert "GET on low.example.org under /x, for 1 minute" in shown
    assert f"bottle {agent.slug}" in shown and "egress-block" in shown
    assert "● low risk" in shown and "first route to this host for this bottle" in shown
    assert "agent says, unverified The task needs it." in shown
    dangerous = card_about(page, "high.example.org").inner_text()
    assert "▲ high risk" in dangerous and "carries the credential TOKEN" in dangerous
    hosts = page.locator("article.card h2").all_inner_texts()
    assert hosts.index("high.example.org") < hosts.index("low.example.org"), "riskiest first"
    assert bool(card.locator(".countdown", has_text="call waits").count()) is look.script
    check_header(page, agent, look)
    assert fits(page)
    for waiting in page.locator("article.card").all():
        agent.says("withdraw-proposal", proposal_id=waiting.get_attribute("data-id"))
    for call in (low, again, high):
        text_of(call)


def check_header(page: Any, agent: Agent, look: Viewport) -> None:
    counts = {name: page.locator(f"#{name}-count").inner_text() for name in ("pending", "high", "running")}
    assert counts == {"pending": "2", "high": "1", "running": "0"}
    assert int(page.locator("#waiting-count").inner_text()) >= 1
    assert f"{agent.slug} v1" in str(page.locator("#proxy").get_attribute("title"))
    assert page.title().startswith("(2) ")
    state = "#connection[data-state=connected]" if look.script else "#connection:not([data-state])"
    told = page.wait_for_selector(state).inner_text()
    assert told == "connected" if look.script else "does not update itself" in told, told
    if look.is_phone:
        first = page.locator("article.card").first.bounding_box()
        assert first["y"] < look.height / 2, "the first card is in sight"


@in_every_scripted_look
def test_what_is_new_waits_behind_a_pill_and_moves_nothing(
    window: Window, agent: Agent, look: Viewport
) -> None:
    low = agent.asks("low.example.com", **LOW)
    page = window(look=look)
    page.evaluate("window.stayed = true")
    card = card_about(page, "low.example.com")
    page.wait_for_function("() => Number(document.querySelector('#pending-count').textContent) > 0")
    before, place = int(page.locator("#pending-count").inner_text()), card.bounding_box()
    high = agent.asks("high.example.com", **HIGH)
    pill = page.get_by_role("button", name="1 new: show")
    pill.wait_for()
    assert page.locator("h2", has_text="high.example.com").count() == 0
    assert page.locator("#news").inner_text() == "1 new proposal", "a screen reader hears of it"
    assert page.title().startswith(f"({before + 1}) ")
    assert page.locator("link[rel=icon]").get_attribute("href").startswith("data:image/png")
    assert card.bounding_box() == place, "nothing moves"
    assert fits(page)
    pill.click()
    card_about(page, "high.example.com")
    hosts = page.locator("article.card h2").all_inner_texts()
    assert hosts.index("high.example.com") < hosts.index("low.example.com"), "riskiest first"
    assert page.evaluate("window.stayed"), "without a reload"
    reject(page, "low.example.com")
    reject(page, "high.example.com")
    assert text_of(low).startswith("status: rejected") and text_of(high).startswith("status: rejected")


@on_the_desk
def test_a_half_made_decision_stays_while_others_arrive(window: Window, agent: Agent, look: Viewport) -> None:
    first = agent.asks("first.example.com")
    page = window(look=look)
    panel = open_panel(card_about(page, "first.example.com"), "Reject")
    panel.locator("textarea").fill("half a sen")
    before = int(page.locator("#pending-count").inner_text())
    second = agent.asks("second.example.com", **HIGH)
    page.locator(f"#pending-count:text-is('{before + 1}')").wait_for(state="attached")
    assert panel.locator("textarea").input_value() == "half a sen"
    page.keyboard.press("Escape")
    reject(page, "second.example.com")
    reject(page, "first.example.com")
    text_of(first), text_of(second)


@in_every_scripted_look
def test_a_card_decided_elsewhere_greys_out_and_says_by_whom(
    window: Window, agent: Agent, look: Viewport
) -> None:
    calls = [agent.asks("elsewhere.example.com"), agent.asks("withdrawn.example.com")]
    mine, others = window(look=look), window("otto")
    withdrawn = card_about(mine, "withdrawn.example.com").get_attribute("data-id")
    height = card_about(mine, "elsewhere.example.com").bounding_box()["height"]
    reject(others, "elsewhere.example.com")
    decided = mine.locator("article.card.is-decided", has_text="elsewhere.example.com")
    decided.wait_for()
    assert "rejected by otto" in decided.inner_text()
    assert decided.locator("form, .act").count() == 0
    assert abs(decided.bounding_box()["height"] - height) < 2, "what is below it stays where it is"
    agent.says("withdraw-proposal", proposal_id=withdrawn)
    mine.locator("article.card.is-decided", has_text=f"withdrawn by bottle {agent.slug}").wait_for()
    for call in calls:
        text_of(call)


# --- Filters, search, links, times


@with_script_and_plain_phone
def test_filters_and_search_stay_in_the_address(window: Window, asked: Asked, look: Viewport) -> None:
    slug = f"filter-{look}"
    asked(slug, 2, "fil", **LOW)
    page = window(look=look)
    page.fill("#search", slug)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"\?q={slug}"))
    assert page.locator("article.card h2").all_inner_texts() == ["fil0.example.com", "fil1.example.com"]
    page.locator("select[name=risk]").select_option("low")
    page.fill("#search", "fil1")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url(re.compile(r"q=fil1.*risk=low"))
    assert page.locator("article.card h2").all_inner_texts() == ["fil1.example.com"]
    page.reload()
    assert page.locator("#search").input_value() == "fil1", "the address holds it"
    page.fill("#search", "there-is-no-such-host")
    page.get_by_role("button", name="Filter").click()
    page.get_by_text("Nothing matches this filter.").wait_for()
    assert fits(page)
    page.get_by_role("link", name="Show the whole queue").click()
    card_about(page, "fil0")


def test_what_a_filter_leaves_out_is_no_news(
    window: Window, agent: Agent, asked: Asked, island: Island
) -> None:
    slug = "narrow-bot"
    asked(slug, 1, "narrow", **LOW)
    page = window()
    page.goto(f"{island.server.console_url}/?bottle={slug}")
    page.wait_for_selector("#connection[data-state=connected]")
    before = int(page.locator("#pending-count").inner_text())
    call = agent.asks("unrelated.example.com")
    page.locator(f"#pending-count:text-is('{before + 1}')").wait_for()
    with page.expect_response("**/queue/state*"):  # it has looked at all of it once more
        pass
    assert page.locator("#new-cards").is_hidden()
    page.goto(island.server.console_url)
    reject(page, "unrelated.example.com")
    text_of(call)


@with_script_and_without
def test_an_empty_queue_says_what_to_expect(window: Window, script: Viewport) -> None:
    page = window(look=script)
    empty = page.locator("#empty")
    assert "Nothing waits for you." in empty.inner_text()
    fits_every_look(page)
    empty.get_by_role("link", name="history").click()
    page.wait_for_url("**/history/")


def test_times_are_the_readers_with_utc_on_hover(window: Window, asked: Asked) -> None:
    asked("time-bot", 1, "clock")
    page = window(timezone_id="Asia/Tokyo", locale="en-GB")
    time = card_about(page, "clock0").locator("time").first
    assert re.fullmatch(r"just now|\d+ minutes? ago", time.inner_text())
    local, utc = re.fullmatch(
        r".*?(\d\d):\d\d, \S+ (\d\d):\d\d:\d\d UTC", str(time.get_attribute("title"))
    ).groups()  # type: ignore[union-attr]
    assert (int(local) - int(utc)) % 24 == 9


# --- Refused, and nobody asked yet


@in_every_scripted_look
def test_drafts_come_and_go_by_themselves_and_nothing_moves(
    window: Window, island: Island, bottles: Bottles, look: Viewport
) -> None:
    first, second = (Agent(island, bottles(f"{name}-{look}")) for name in ("shy", "meek"))
    page = window(look=look)
    page.evaluate("window.stayed = true")
    refuse(island, first)
    part = page.locator("details.drafts")
    part.locator("summary").click()
    line = part.locator("li", has_text=first.slug)
    assert "refused 1 time" in line.inner_text()
    place = line.bounding_box()
    refuse(island, first)
    line.get_by_text("refused 2 times").wait_for()
    refuse(island, second)
    pill = part.get_by_role("button", name="1 new: show")
    pill.wait_for()
    assert part.locator("li").count() == 1 and line.bounding_box() == place
    assert page.locator("#news").inner_text() == "1 new kind of refused request"
    pill.click()
    part.locator("li", has_text=second.slug).wait_for()
    assert part.locator("summary strong").inner_text() == "2"
    call = first.asks(ORIGIN, path_allowlist=["/docs"])
    part.locator("li.is-over", has_text=first.slug).get_by_text("somebody asked").wait_for()
    assert part.locator("summary strong").inner_text() == "1"
    assert page.evaluate("window.stayed"), "without a reload"
    reject(page, ORIGIN)
    text_of(call)


def refuse(island: Island, agent: Agent) -> None:
    assert island.curl(agent.bottle, f"https://{ORIGIN}/docs/guide")[0] == 403
