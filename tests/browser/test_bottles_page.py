"""The bottles' pages in Chromium: routes, traffic, versions, roll back, token, stop and start, rebuilds."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import Bottles, Window
from tests.support.console_page import (
    Agent,
    card_about,
    fits,
    fits_every_look,
    open_panel,
    said,
    until,
)
from tests.support.isolated_browser import Island
from tests.support.requirements import require
from tests.support.screenshot_data import Scene, set_scene, strike
from tests.support.server_shell import Errands
from tests.support.viewports import (
    Viewport,
    in_every_look,
    with_script_and_plain_phone,
    with_script_and_without,
)

pytestmark = [pytest.mark.browser, pytest.mark.process]


@pytest.fixture(scope="module")
def scene(errands: Errands) -> Iterator[Scene]:
    made = set_scene(errands, "past-bot")
    yield made
    strike(errands, made)


@in_every_look
def test_a_bottle_is_found_compared_and_rolled_back(
    window: Window, island: Island, scene: Scene, look: Viewport
) -> None:
    page = window(look=look)
    page.get_by_role("link", name="Bottles", exact=True).click()
    assert fits(page)
    assert page.locator("svg.plot").count() >= 1
    page.get_by_role("link", name=scene.slug, exact=True).click()
    assert fits(page)
    text = page.locator("#content").inner_text()
    assert "api.example.com" in text and "telemetry.example.net" in text
    assert "50 uses" in text and "in the record" in text, "leases and last use"
    local = "UTC" not in page.locator("#versions ~ table time").first.inner_text()
    assert local is look.script
    page.get_by_role("link", name="What going back to version 2 would change").click()
    compared = page.locator("#comparison")
    assert "route removed: leased.example.com" in compared.inner_text()
    assert compared.locator("table.diff tr.diff-removed").count() >= 1
    page.get_by_label("Compare version").fill("1")
    page.get_by_label("with", exact=True).fill("2")
    page.get_by_role("button", name="Compare").click()
    assert "From version 1 to version 2" in compared.inner_text()
    assert "route added: api.example.com" in compared.inner_text()
    assert fits(page)
    before = newest(page)
    page.get_by_role("button", name="Roll back to version 2", exact=True).click()
    told = page.locator(".messagelist").inner_text()
    assert f"The table is back at version 2, as version {before + 1}, and live." in told
    page.get_by_role("button", name=f"Roll back to version {before}", exact=True).click()
    assert f"as version {before + 2}, and live." in page.locator(".messagelist").inner_text()


ROUTES = """
from django.db import transaction
from egress.tables import publishing, versions
from egress.policy.routes import Route
from supervise.bottles import records
with transaction.atomic():
    newest = versions.lock(records.get(given["slug"]))
    table = newest.table.with_route(Route("api.example.com", ("/a", "/b")))
    table = table.with_route(Route("kept.example.com"))
    versions.append(newest, table, author="tests", cause="by hand")
publishing.publish(newest.bottle)
"""


@with_script_and_plain_phone
def test_a_route_is_changed_and_withdrawn(
    window: Window, island: Island, bottles: Bottles, errands: Errands, look: Viewport
) -> None:
    slug = bottles(f"routes-{look}")["slug"]
    errands.run(ROUTES, slug=slug)
    page = window(look=look)
    page.goto(f"{island.server.console_url}/bottles/{slug}/")
    page.get_by_role("link", name="Change the route of api.example.com").click()
    page.get_by_label("Paths, one on each line").fill("/a")
    page.get_by_text("For operators").click()
    page.get_by_label("Pinned addresses, one on each line").fill("10.0.0.5")
    if not look.script:
        page.get_by_role("button", name="Preview").click()
    told = page.locator(".preview", has_text="private address: the route is pinned to 10.0.0.5")
    told.wait_for()  # it follows what is written, field by field
    assert "With these changes" in told.inner_text()
    assert "no longer reachable: api.example.com under /b" in told.inner_text()
    assert fits(page)
    page.get_by_role("button", name="Change the route").click()
    assert "The route of api.example.com is changed, as version 3, and live." in said(page)
    row = page.locator("#routes ~ table tr", has_text="api.example.com")
    assert "pinned to 10.0.0.5" in row.inner_text() and "/b" not in row.inner_text()
    row.get_by_role("link", name="Withdraw").click()
    assert "open connections that use its route are cut at once" in page.locator(".decide").inner_text()
    assert fits(page)
    page.get_by_role("button", name="Withdraw the route").click()
    assert "The route of api.example.com is withdrawn, as version 4, and live." in said(page)
    assert "kept.example.com" in page.locator("#routes ~ table").inner_text()
    assert "api.example.com" not in page.locator("#routes ~ table").inner_text()


def newest(page: Any) -> int:
    return int(page.locator(".compare input[name=to]").get_attribute("max"))


@with_script_and_without
def test_a_bar_tells_its_hour(window: Window, island: Island, scene: Scene, script: Viewport) -> None:
    page = window(look=script)
    page.goto(f"{island.server.console_url}/bottles/{scene.slug}/")
    titles = page.locator(".plot-large svg title").all_text_contents()
    assert len(titles) == 24
    assert all(re.fullmatch(r"\d\d-\d\d \d\d:00 UTC: \d+ allowed, \d+ refused", title) for title in titles)
    page.get_by_role("link", name="14 days").click()
    assert page.locator(".plot-large svg g").count() == 14


@with_script_and_plain_phone
def test_a_token_is_shown_once(window: Window, island: Island, bottles: Bottles, look: Viewport) -> None:
    old = Agent(island, bottles(f"token-{look}"))
    page = window(look=look)
    page.goto(f"{island.server.console_url}/bottles/{old.slug}/")
    page.get_by_role("button", name="Replace the token").click()
    token = page.locator(".token .secret").inner_text()
    assert token.startswith("bbt_") and fits(page)
    fresh = Agent(island, old.bottle | {"token": token})
    assert "routes" in fresh.says("list-egress-routes")["structuredContent"]
    assert "401" in island.ask(old.bottle, "list-egress-routes").error(), "the old one no longer works"
    page.goto(f"{island.server.console_url}/bottles/{old.slug}/")
    assert "bbt_" not in page.content()


@with_script_and_plain_phone
def test_a_bottle_is_started_and_stopped(
    window: Window, island: Island, bottles: Bottles, look: Viewport
) -> None:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    slug = bottles(f"life-{look}")["slug"]
    manifest = island.server.home / "bottles" / f"{slug}.yaml"
    manifest.write_text("backend: local\ncommand: [sleep, '600']\n")
    page = window(look=look)
    page.goto(f"{island.server.console_url}/bottles/{slug}/")
    for verb, state, done in (("Start", "running", "started"), ("Stop", "stopped", "stopped")):
        page.get_by_role("button", name=verb, exact=True).click()
        assert f"The bottle {slug} is being {done}." in said(page)
        page.goto(f"{island.server.console_url}/bottles/{slug}/")
        until(page, page.locator(f".badge.state-{state}"))
        assert fits(page)
    page.goto(island.server.console_url)
    assert slug in page.locator("#bottles").inner_text()


@pytest.mark.parametrize("look", [Viewport(), Viewport(is_phone=True)], ids=str)
def test_everything_is_reached_by_keyboard(
    window: Window, island: Island, scene: Scene, look: Viewport
) -> None:
    page = window(look=look)
    page.goto(f"{island.server.console_url}/bottles/{scene.slug}/")
    reached, name = set(), ""
    while name != "Replace the token" and len(reached) < 300:
        page.keyboard.press("Tab")
        name = page.evaluate(
            "(document.activeElement.ariaLabel || document.activeElement.innerText || '').trim()"
        )
        reached.add(name)
    assert {"Compare", "Start", "Replace the token"} <= reached
    assert any(name.startswith("Roll back to version") for name in reached)


# --- Images


@with_script_and_plain_phone
def test_an_image_is_approved_and_said_to_be_recorded(window: Window, agent: Agent, look: Viewport) -> None:
    """A bottle that has no sandbox here is not rebuilt, and nobody is told that it was."""
    text = "FROM debian:12\nRUN apt-get install --yes ripgrep\n"
    call = agent.island.ask(agent.bottle, "capability-block", dockerfile=text, justification="I need rg.")
    page = window(look=look)
    page.goto(f"{page.url}?bottle={agent.slug}")
    panel = open_panel(card_about(page, "container image"), "Approve")
    panel.get_by_role("button", name="Approve as asked").click()
    assert "Approved" in said(page) and "recorded" in said(page)
    assert call.result()["content"][0]["text"].startswith("status: approved")


@with_script_and_without
def test_a_rebuild_shows_its_steps_its_log_and_the_way_back(
    window: Window, island: Island, scene: Scene, script: Viewport
) -> None:
    page = window(look=script)
    page.goto(island.server.console_url + scene.pages["rebuild failed"])
    steps = page.locator(".rebuild .steps")
    assert "workspace noted" in steps.inner_text() and "image built: failed" in steps.inner_text()
    assert (
        "The bottle keeps its previous image: make: *** [a] Error 2" in page.locator(".rebuild").inner_text()
    )
    assert "Step 40/40" in page.locator("pre.log").inner_text()
    if script.script:  # why it failed stands at its end
        page.wait_for_function("""() => {
            const log = document.querySelector("pre.log");
            return log.scrollTop > 0 && log.scrollTop + log.clientHeight >= log.scrollHeight - 1;
        }""")
    assert "branch main, commit 4f2a9c1, 2 files not committed" in page.locator(".rebuild").inner_text()
    page.get_by_text("Files not committed", exact=True).click()
    assert "notes.md" in page.locator(".rebuild").inner_text()
    assert page.get_by_role("button", name="Build again").is_visible()
    fits_every_look(page)
    page.goto(island.server.console_url + scene.pages["rebuild live"])
    assert steps.locator("[data-word=done]").count() == 4
    assert page.get_by_role("button", name="Roll back to the previous image").is_visible()
    fits_every_look(page)
