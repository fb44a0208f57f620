"""Deciding in Chromium: approve, modify, reject, snooze, stop asking, several at once; keys; races."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import Asked, Window
from tests.support.console_page import (
    Agent,
    card_about,
    fits,
    open_panel,
    reject,
    said,
    text_of,
    until,
)
from tests.support.isolated_browser import Island
from tests.support.viewports import Viewport, in_every_look, on_the_desk, with_script_and_plain_phone

pytestmark = [pytest.mark.browser, pytest.mark.process]
LEASED = {"lease": {"ttl_seconds": 600}}


def within_reach(page: Any, look: Viewport) -> None:
    """On a phone the verbs are a bar at the bottom of the screen, large enough for a thumb."""
    for name in ("Approve…", "Modify…", "Reject…", "Snooze…"):
        box = page.locator(".decide").get_by_text(name, exact=True).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= look.width
        if look.is_phone:
            assert box["y"] + box["height"] <= look.height
            assert box["height"] >= 40


@in_every_look
def test_an_approval_wakes_the_waiting_call(window: Window, agent: Agent, look: Viewport) -> None:
    call = agent.asks("approve.example.com", path_allowlist=["/docs"], methods=["GET"])
    page = window(look=look)
    card = card_about(page, "approve.example.com")
    assert call.waits, "the call waits"
    panel = open_panel(card, "Approve")
    within_reach(page, look)
    assert fits(page)
    panel.locator("textarea").fill("for this task")
    panel.get_by_role("button", name="Approve as asked").click()
    told = said(page)
    assert f"Approved: approve.example.com for {agent.slug} → live v2 in" in told and " ms." in told
    answer = text_of(call)
    assert answer.startswith("status: approved") and "for this task" in answer
    assert "approve.example.com" in agent.says("list-egress-routes")["content"][0]["text"]


def test_what_is_decided_stays_in_sight_above_the_note(window: Window, asked: Asked) -> None:
    asked("long-bot", 1, "long", path_allowlist=[f"/part-{number}" for number in range(30)])
    page = window(is_fresh=True)
    page.set_viewport_size({"width": 1280, "height": 700})
    panel = open_panel(card_about(page, "long0.example.com"), "Reject")
    top = page.locator(".detail h2").bounding_box()["y"]
    button = panel.get_by_role("button", name="Reject").bounding_box()
    assert 0 <= top < button["y"]
    assert button["y"] + button["height"] <= 700


@with_script_and_plain_phone
def test_a_modification_grants_less(window: Window, agent: Agent, look: Viewport) -> None:
    call = agent.asks("modify.example.com")
    page = window(look=look)
    panel = open_panel(card_about(page, "modify.example.com"), "Modify")
    panel.locator("textarea[name=paths]").fill("/only/this\n/and/that")
    panel.get_by_label("GET", exact=True).check()
    if look.script:
        assert panel.get_by_label("only these, and what").is_checked(), "writing a path chooses it"
    else:
        panel.get_by_label("only these, and what").check()
        panel.get_by_label("only these:", exact=True).check()
    panel.get_by_label("Ends after").fill("2")
    if not look.script:
        panel.get_by_role("button", name="Preview").click()
    page.locator(".preview", has_text="path: /and/that").wait_for()
    assert fits(page)
    page.get_by_role("button", name="Approve with these changes").click()
    assert "Modified: modify.example.com" in said(page)
    answer = call.result()
    assert answer["content"][0]["text"].startswith("status: modified")
    granted = answer["structuredContent"]["granted"]
    assert (granted["path_allowlist"], granted["methods"]) == (["/and/that", "/only/this"], ["GET"])
    assert granted["lease"]["expires_at"]


@with_script_and_plain_phone
def test_a_rejection_tells_the_reason_and_the_history_keeps_it(
    window: Window, agent: Agent, look: Viewport
) -> None:
    call = agent.asks("reject.example.com")
    page = window(look=look)
    panel = open_panel(card_about(page, "reject.example.com"), "Reject")
    at = page.url
    panel.get_by_role("button", name="Reject").click()
    assert page.url == at, "the browser asks for the reason before anything is sent"
    panel.locator("textarea").fill("Use the mirror instead.")
    panel.get_by_role("button", name="Reject").click()
    assert "Rejected: reject.example.com" in said(page)
    answer = call.result()
    assert answer["isError"] is True
    assert "Use the mirror instead." in answer["content"][0]["text"]
    page.get_by_role("link", name="History", exact=True).click()
    line = page.locator("table.history tr", has_text=agent.slug)
    assert "rejected" in line.inner_text() and "Use the mirror instead." in line.inner_text()
    assert fits(page)
    line.get_by_role("link").click()
    assert "rejected by operator" in page.locator("article.detail").inner_text()


@with_script_and_plain_phone
def test_a_snoozed_card_goes_and_comes_back(
    window: Window, asked: Asked, island: Island, look: Viewport
) -> None:
    slug = f"snooze-{look}"
    asked(slug, 1, "nap")
    page, others = window(look=look), window("otto") if look.script else None
    page.goto(f"{island.server.console_url}/?bottle={slug}")
    open_panel(card_about(page, "nap0"), "Snooze").get_by_role("button", name="until tomorrow").click()
    assert "Snoozed for everyone until" in said(page)
    if others:  # on every open page
        for shown in (page, others):
            shown.locator("article.card.is-snoozed", has_text="snoozed by operator").wait_for()
    page.goto(f"{island.server.console_url}/?bottle={slug}")
    assert page.locator("article.card").count() == 0
    page.goto(f"{island.server.console_url}/?show=snoozed&bottle={slug}")
    card_about(page, "nap0").get_by_text("Wake…").click()
    page.get_by_role("button", name="Back into the queue now").click()
    assert "Back in the queue" in said(page)
    page.goto(f"{island.server.console_url}/?bottle={slug}")
    card_about(page, "nap0")


@with_script_and_plain_phone
def test_stop_asking_answers_the_next_ask_at_once(
    window: Window, agent: Agent, island: Island, look: Viewport
) -> None:
    call = agent.asks("enough.example.com")
    page = window(look=look)
    panel = open_panel(card_about(page, "enough.example.com"), "Reject")
    panel.locator("textarea").fill("We have a mirror for that.")
    panel.get_by_label("and stop asking").check()
    panel.get_by_role("button", name="Reject").click()
    assert "Rejected" in said(page)
    text_of(call)
    again = agent.asks("enough.example.com", justification="Please, please.").result()
    assert again["isError"] and "We have a mirror for that." in again["content"][0]["text"]
    page.goto(f"{island.server.console_url}/refusals/")
    line = page.locator(".line-item", has_text=agent.slug)
    assert "answered 1 time" in line.inner_text()
    assert fits(page)
    line.get_by_role("button", name="Lift").click()
    assert "is a card again" in said(page)
    page.goto(island.server.console_url)
    waiting = agent.asks("enough.example.com")
    reject(page, "enough.example.com")
    text_of(waiting)


@in_every_look
def test_several_are_decided_through_a_page_that_lists_them(
    window: Window, asked: Asked, island: Island, look: Viewport
) -> None:
    slug, home = f"bulk-{look}", island.server.console_url
    asked(slug, 3, "many", **LEASED)
    asked(f"{slug}-high", 1, "risky", auth={"scheme": "Bearer", "token_ref": "TOKEN"})
    page = window(look=look)
    page.goto(f"{home}/?q={slug}")
    assert not page.locator(".bulk").is_visible()
    for name in ("many0", "many1", "risky0"):
        card_about(page, name).locator(".pick").check()
    bar = page.locator(".bulk").bounding_box()
    assert bar["y"] + bar["height"] <= look.height and bar["x"] + bar["width"] <= look.width
    page.locator(".bulk").get_by_role("button", name="Approve low risk").click()
    assert (
        "1 left out: only low-risk proposals can be approved together."
        in page.locator("#content").inner_text()
    )
    assert page.locator(".bulk-form .line-item").count() == 2
    assert fits(page)
    page.get_by_role("button", name="Approve 2 proposals").click()
    report = page.locator("#content").inner_text()
    assert "2 of 2 decided." in report and report.count("→ live v") == 2
    page.goto(f"{home}/?bottle={slug}")
    card_about(page, "many2").locator(".pick").check()
    page.locator(".bulk").get_by_role("button", name="Reject").click()
    page.get_by_label("Reason").fill("enough for today")
    page.get_by_role("button", name="Reject 1 proposal").click()
    assert "1 of 1 decided." in page.locator("#content").inner_text()


# --- A change between looking and deciding


@with_script_and_plain_phone
def test_what_changed_since_it_was_shown_is_shown_again_before_anything_is_decided(
    window: Window, agent: Agent, look: Viewport
) -> None:
    first = agent.asks("shared.example.com", path_allowlist=["/one"])
    mine, others = window(look=look), window("otto")
    panel = open_panel(card_about(mine, "shared.example.com"), "Approve")
    second = agent.asks("shared.example.com", path_allowlist=["/two"])
    other = until(others, others.locator("article.card", has_text="under /two"))
    open_panel(other, "Approve").get_by_role("button", name="Approve as asked").click()
    assert "Approved" in said(others)
    if look.script:
        mine.locator("#sheet .newer").wait_for()
    assert panel.is_visible(), "the half-made decision is not taken away"
    panel.get_by_role("button", name="Approve as asked").click()
    problem = mine.locator(".problem[role=alert]")
    problem.wait_for()
    assert "Nothing was decided." in problem.inner_text() and "/two" in problem.inner_text()
    mine.locator(".panel-approve[open]").get_by_role("button", name="Approve as asked").click()
    assert "Approved: shared.example.com" in said(mine), "seen again, it can be approved"
    assert text_of(first).startswith("status: approved") and text_of(second).startswith("status: approved")


# --- Script: the preview follows, keys open and Ctrl+Enter confirms


@on_the_desk
def test_the_preview_follows_the_edit(window: Window, agent: Agent, look: Viewport) -> None:
    call = agent.asks("edit.example.com", methods=["GET", "POST"])
    page = window(look=look)
    panel = open_panel(card_about(page, "edit.example.com"), "Modify")
    preview = page.locator("#sheet .preview")
    preview.get_by_text("all paths of edit.example.com").wait_for()
    panel.locator("textarea[name=paths]").fill("/only/this")
    preview.get_by_text("GET, POST on edit.example.com under /only/this").wait_for()
    panel.get_by_label("POST").uncheck()
    preview.get_by_text("newly reachable: GET on edit.example.com under /only/this").wait_for()
    assert preview.locator("table.diff tr.diff-added", has_text="path: /only/this").count() >= 1
    panel.get_by_label("Scheme").select_option("Bearer")
    panel.get_by_label("Secret’s name").fill("not a name")
    preview.get_by_text("auth.token_ref must name a secret").wait_for()
    panel.get_by_label("Secret’s name").fill("DOCS_TOKEN")
    preview.get_by_text("carries the credential DOCS_TOKEN").wait_for()
    panel.get_by_label("Scheme").select_option("")
    panel.get_by_label("Secret’s name").fill("")
    panel.locator("textarea[name=note]").fill("less will do")
    panel.locator("textarea[name=note]").press("Control+Enter")
    assert "Modified: edit.example.com" in said(page)
    granted = call.result()["structuredContent"]["granted"]
    assert (granted["path_allowlist"], granted["methods"]) == (["/only/this"], ["GET"])


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def focused(page: Any) -> str:
    return str(page.evaluate("(document.activeElement.querySelector('h2') || {}).innerText || ''"))


@on_the_desk
def test_keys_move_open_and_search_and_decide_nothing(
    window: Window, asked: Asked, island: Island, look: Viewport
) -> None:
    slug = f"keys-{look}"
    asked(slug, 3, "key")
    page = window(look=look)
    page.goto(f"{island.server.console_url}/?bottle={slug}")
    page.wait_for_selector("#connection[data-state=connected]")
    press(page, "j")
    assert focused(page) == "key0.example.com"
    press(page, "j", "j", "j", "k")
    assert focused(page) == "key1.example.com"
    for key, panel in {"o": "", "e": "modify", "r": "reject", "s": "snooze", "a": "approve"}.items():
        press(page, key)
        page.wait_for_selector("#sheet[open] .detail")
        assert page.locator("#sheet details.panel[open]").count() == (1 if panel else 0)
        if panel:
            assert page.locator(f"#sheet .panel-{panel}[open]").count() == 1
        press(page, "Escape")
        page.wait_for_selector("#sheet", state="hidden")
        assert focused(page) == "key1.example.com", "the focus comes back to the card"
    press(page, "x")
    assert page.locator(".bulk").is_visible()
    press(page, "?")
    assert "confirm the form that is open" in page.locator("#keys").inner_text()
    press(page, "Escape", "/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("jkoear")
    assert page.locator("#search").input_value() == "jkoear", "in a field keys are letters"
    assert page.locator("article.card[data-status=pending]").count() == 3


@on_the_desk
def test_one_key_never_approves(window: Window, agent: Agent, look: Viewport) -> None:
    call = agent.asks("keys.example.com")
    page = window(look=look)
    card_about(page, "keys.example.com").focus()
    page.keyboard.press("a")
    panel = page.locator("#sheet .panel-approve[open]")
    panel.wait_for(state="attached")
    page.keyboard.press("Enter")
    assert panel.locator("textarea").input_value() == "\n", "the note has the focus"
    assert call.waits
    page.keyboard.press("Control+Enter")
    assert "Approved: keys.example.com" in said(page)
    assert text_of(call).startswith("status: approved")
