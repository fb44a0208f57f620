"""What an operator reads before deciding, in Chromium: the change, its effects, warnings and precedents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import Window
from tests.support.console_page import Agent, card_about, fits_every_look, reject, text_of
from tests.support.isolated_browser import Island
from tests.support.screenshot_data import Scene, set_scene, strike
from tests.support.server_shell import Errands
from tests.support.viewports import Viewport, every_size_and_scheme, with_script_and_without

pytestmark = [pytest.mark.browser, pytest.mark.process]


@pytest.fixture(scope="module")
def scene(errands: Errands) -> Iterator[Scene]:
    made = set_scene(errands, "detail-bot")
    yield made
    strike(errands, made)


def read(page: Any, island: Island, scene: Scene, name: str) -> str:
    page.goto(island.server.console_url + scene.pages[name])
    return str(page.locator("article.detail").inner_text())


@with_script_and_without
def test_the_change_is_shown_as_it_will_be_applied(
    window: Window, island: Island, scene: Scene, script: Viewport
) -> None:
    page = window(look=script)
    text = read(page, island, scene, "route")
    assert "newly reachable: GET, POST on api.github.com under /repos/acme/site; carries GITHUB_TOKEN" in text
    unified, split = page.locator("table.diff:not(.split)"), page.locator("table.diff.split")
    assert "auth.token_ref: GITHUB_TOKEN" in unified.inner_text()
    assert unified.locator("tr.diff-added", has_text="route api.github.com").count() == 1
    assert not split.is_visible()
    page.get_by_text("Side by side").click()
    split.wait_for()
    assert not unified.is_visible(), "one view at a time"
    row = split.locator("tr", has_text="gate api.github.com")
    for look in every_size_and_scheme(page):
        before, after = (cell.bounding_box() for cell in row.locator("td").all())
        assert before["x"] + before["width"] <= after["x"] + 1 < look.width, "beside each other"
    assert row.locator("td.diff-none + td.diff-added").count() == 1


@with_script_and_without
def test_words_of_the_agent_and_what_was_decided_before_stand_beside_it(
    window: Window, island: Island, scene: Scene, script: Viewport
) -> None:
    page = window(look=script)
    text = read(page, island, scene, "route")
    assert "text from the agent, unverified" in text
    page.locator(".agent-text summary").click()
    assert "notes of v2.4.0" in page.locator("pre.hostile").inner_text()
    past = page.locator(".precedents").inner_text()
    assert "GET https://api.github.com/repos/acme/site no-route, 3 times, last" in past
    assert "This bottle and api.github.com" in past and "Ask for the whole repository." in past
    assert "The same ask of other bottles" in past and "detail-bot-twin" in past and "needed there" in past


WARNINGS = {
    "widened": ["widening: all paths of api.example.com", "new credential reach", "all paths"],
    "wild": ["wildcard: every name below", "the name mixes scripts", "look-alike", "all paths"],
    "inner": ["private address: the route is pinned to 10.1.2.3"],
    "low": ["first route to this host for this bottle"],
}


@with_script_and_without
def test_warnings_name_what_could_be_overlooked(
    window: Window, island: Island, scene: Scene, script: Viewport
) -> None:
    page = window(look=script)
    for name, warnings in WARNINGS.items():
        read(page, island, scene, name)
        found = page.locator(".findings").inner_text()
        for warning in warnings:
            assert warning in found, name
    page.goto(island.server.console_url + scene.pages["wild"])
    assert page.locator(".detail-head .badge", has_text="punycode").is_visible()


@with_script_and_without
def test_a_dockerfile_is_shown_instruction_by_instruction(
    window: Window, island: Island, scene: Scene, script: Viewport
) -> None:
    page = window(look=script)
    text = read(page, island, scene, "Dockerfile")
    assert "This bottle’s images" in text
    flagged = page.locator(".instruction", has_text="curl -k").inner_text()
    assert "runs a script straight from the network" in flagged and "turns certificate checks off" in flagged
    assert "switches to root" in page.locator(".instruction", has_text="USER root").inner_text()
    assert page.locator(".instruction.diff-removed").count() >= 1
    page.get_by_text("Dockerfile, before and after").click()
    assert page.locator("table.diff:not(.split) tr.diff-added", has_text="ripgrep").is_visible()


@with_script_and_without
def test_a_tool_call_is_shown_with_its_arguments(
    window: Window, island: Island, scene: Scene, script: Viewport
) -> None:
    page = window(look=script)
    text = read(page, island, scene, "tool call")
    assert "is called once, with these arguments" in text and '"title": "Broken build"' in text
    assert "This bottle and create_issue of issues" in text
    assert page.locator(".panel-modify").count() == 0, "what was not asked cannot be given"
    page.goto(f"{island.server.console_url}/?bottle={scene.slug}")
    assert card_about(page, "create_issue").get_by_text("Modify…").count() == 0


HOSTILE = (
    "\u202eevil\u202c <script>document.title='owned'</script><img src=x onerror=alert(1)> </pre>\x1b[31m "
)


@with_script_and_without
def test_hostile_text_does_nothing_and_is_readable(window: Window, agent: Agent, script: Viewport) -> None:
    call = agent.asks("hostile.example.com", justification=HOSTILE + "x" * 900_000)
    page = window(look=script)
    card = card_about(page, "hostile.example.com")
    assert "⟦U+202E⟧evil⟦U+202C⟧ <script>" in card.inner_text()
    card.get_by_role("link", name="hostile.example.com").click()
    page.locator(".detail .agent-text summary").click()
    shown = page.locator(".detail pre.hostile").first.inner_text()
    assert "⟦U+202E⟧evil⟦U+202C⟧ <script>document.title='owned'</script>" in shown
    assert "⟦U+001B⟧[31m" in shown
    assert "owned" not in page.title()
    assert page.locator("article img, article script").count() == 0
    fits_every_look(page)
    page.goto(page.url.split("/proposals/")[0])
    reject(page, "hostile.example.com")
    text_of(call)
