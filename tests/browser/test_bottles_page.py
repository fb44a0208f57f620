"""The bottles' pages in Chromium: wide and narrow, light and dark, with script and without."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.browser.conftest import Window
from tests.browser.island import Island

pytestmark = [pytest.mark.browser, pytest.mark.process]

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
LOOKS = [
    pytest.param(
        {"viewport": size, "color_scheme": scheme, "java_script_enabled": script},
        id=f"{size['width']}-{scheme}-{'script' if script else 'plain'}",
    )
    for size, scheme, script in product((WIDE, NARROW), ("light", "dark"), (True, False))
]
HISTORY = """
from datetime import timedelta
from django.db import transaction
from django.utils import timezone
from egress import store
from egress.models import TrafficRecord
from egress.routes import Auth, Lease, Route
from supervise import bottles

bottle = bottles.get("{slug}")
now = timezone.now()
for route in (
    Route("api.example.com", ("/repos/acme",), ("GET", "POST"), auth=Auth("Bearer", "TOKEN")),
    Route("a-very-long-name-that-does-not-fit-on-a-telephone.internal.registry.example.org"),
    Route("leased.example.com", lease=Lease(now + timedelta(hours=3), 50, now)),
):
    with transaction.atomic():
        newest = store.lock(bottle)
        store.append(newest, newest.table.with_route(route), author="tests", cause="by hand")
    store.publish(bottle)
TrafficRecord.objects.bulk_create(
    TrafficRecord(
        bottle=bottle, at=now - timedelta(hours=hour), method="GET", scheme="https", host=host, path="/",
        route="api.example.com" if verdict == "allowed" else "", table_version=2, verdict=verdict,
        reason="ok" if verdict == "allowed" else "no-route", status=200, bytes_out=0, bytes_in=0,
        duration_ms=1,
    )
    for hour in range(20)
    for verdict, host, times in (
        ("allowed", "api.example.com", hour * 7 % 11), ("refused", "telemetry.example.net", hour * 5 % 7),
    )
    for _ in range(times)
)
"""


@pytest.fixture(scope="module")
def slug(island: Island) -> Iterator[str]:
    """A bottle with a past."""
    made = island.server.create_bottle("past-bot")["slug"]
    island.server.manage("shell", "-c", HISTORY.replace("{slug}", made))
    yield made


def fits(page: Any) -> bool:
    """Nothing makes the page wider than the screen."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


@pytest.mark.parametrize("look", LOOKS)
def test_a_bottle_is_found_compared_and_rolled_back(
    window: Window, island: Island, slug: str, look: dict[str, Any], tmp_path: Any
) -> None:
    page = window(**look)
    page.get_by_role("link", name="Bottles", exact=True).click()
    assert fits(page)
    assert page.locator("svg.plot").count() >= 1
    page.screenshot(path=tmp_path / "list.png", full_page=True)
    page.get_by_role("link", name=slug, exact=True).click()
    assert fits(page)
    text = page.locator("#content").inner_text()
    assert "api.example.com" in text and "telemetry.example.net" in text
    assert ("UTC" not in page.locator("#versions ~ table time").first.inner_text()) is look[
        "java_script_enabled"
    ]
    page.screenshot(path=tmp_path / "bottle.png", full_page=True)
    page.get_by_role("link", name="What going back to version 2 would change").click()
    compared = page.locator("#comparison")
    assert "route removed: leased.example.com" in compared.inner_text()
    assert fits(page)
    before = newest(page)
    page.get_by_role("button", name="Roll back to version 2", exact=True).click()
    said = page.locator(".messagelist").inner_text()
    assert f"The table is back at version 2, as version {before + 1}, and live." in said
    page.get_by_role("button", name=f"Roll back to version {before}", exact=True).click()
    assert f"as version {before + 2}, and live." in page.locator(".messagelist").inner_text()


def newest(page: Any) -> int:
    return int(page.locator(".compare input[name=to]").get_attribute("max"))


def test_a_bar_tells_its_hour(window: Window, island: Island, slug: str) -> None:
    page = window()
    page.goto(f"{island.server.console_url}/bottles/{slug}/")
    titles = page.locator(".plot-large svg title").all_text_contents()
    assert len(titles) == 24
    assert all(re.fullmatch(r"\d\d-\d\d \d\d:00 UTC: \d+ allowed, \d+ refused", title) for title in titles)
    page.get_by_role("link", name="14 days").click()
    assert page.locator(".plot-large svg g").count() == 14


@pytest.mark.parametrize("script", [True, False], ids=["script", "plain"])
def test_a_token_is_shown_once(window: Window, island: Island, script: bool) -> None:
    island.server.create_bottle(f"token-bot-{int(script)}")
    page = window(java_script_enabled=script)
    page.goto(f"{island.server.console_url}/bottles/token-bot-{int(script)}/")
    page.get_by_role("button", name="Make a new token").click()
    assert page.locator(".token .secret").inner_text().startswith("bbt_")
    page.goto(f"{island.server.console_url}/bottles/token-bot-{int(script)}/")
    assert "bbt_" not in page.content()


def test_everything_is_reached_by_keyboard(window: Window, island: Island, slug: str) -> None:
    page = window()
    page.goto(f"{island.server.console_url}/bottles/{slug}/")
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.ariaLabel || document.activeElement.innerText || ''"
            ).strip()
        )
    assert {"Compare", "Start", "Make a new token, end the old one"} <= reached
    assert "Roll back to version 1" in reached
