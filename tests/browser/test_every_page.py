"""Every page in Chromium, in every look: it fits, can be read, and axe finds nothing serious."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import Window
from tests.support import ROOT
from tests.support.console_page import card_about, fits_every_look, is_narrow_in_every_size, open_panel
from tests.support.isolated_browser import Island
from tests.support.requirements import require
from tests.support.screenshot_data import Scene, set_scene, strike
from tests.support.server_shell import Errands
from tests.support.viewports import DESK, Viewport, every_size_and_scheme, with_script_and_without

pytestmark = [pytest.mark.browser, pytest.mark.process]
AXE = ROOT / ".cache" / "clients" / "node_modules" / "axe-core" / "axe.min.js"
# Whether a page is dark matters to two rules only; the others look at what it is made of.
OF_COLOUR = ["color-contrast", "link-in-text-block"]
# The width of the screen matters to one more: what does not fit there has to be scrolled to.
OF_LAYOUT = ["scrollable-region-focusable"]
CHECK = """async (rules) => {
  const only = rules.length ? { runOnly: { type: "rule", values: rules } } : {};
  const { violations } = await axe.run(document, { resultTypes: ["violations"], preload: false, ...only });
  return violations.filter((found) => ["serious", "critical"].includes(found.impact))
    .map((found) => `${found.id}: ${found.nodes.slice(0, 3).map((node) => node.html).join(" | ")}`);
}"""

# Colours would fade to the new look. The page's policy refuses style elements, but not this.
NO_FADING = """() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("* { transition: none !important; }");
  document.adoptedStyleSheets.push(sheet);
}"""


@pytest.fixture(scope="module")
def scene(errands: Errands) -> Iterator[Scene]:
    made = set_scene(errands, "page-bot")
    yield made
    strike(errands, made)


def test_every_page_fits_the_screen_and_axe_finds_nothing_serious(
    browser: Any, window: Window, island: Island, scene: Scene
) -> None:
    require(AXE.is_file(), "axe-core", "tests/clients/install")
    page, home = window(), island.server.console_url
    found: dict[str, list[str]] = {}
    for name, path in {**scene.pages, **scene.admin_pages}.items():
        assert page.goto(home + path).status == 200, name
        fits_every_look(page)
        if name == "queue":
            page.wait_for_selector("#connection[data-state=connected]")
            page.locator("details.drafts summary").click()
            page.locator(".pick").first.check()
        if name == "modify":
            page.locator(".preview", has_text="With these changes").wait_for()
        check(page, name, found)
    page.goto(home + scene.pages["queue"])
    page.wait_for_selector("#connection[data-state=connected]")
    page.click("#help")
    check(page, "keys", found)
    page.keyboard.press("Escape")
    open_panel(card_about(page, "api.github.com"), "Modify")
    page.locator("#sheet .preview", has_text="With these changes").wait_for()
    check(page, "dialog", found)
    stranger = browser.new_context()
    page = stranger.new_page()
    page.goto(home)
    check(page, "sign in", found)
    stranger.close()
    assert "\n".join(f"{name}: {problem}" for name, problems in found.items() for problem in problems) == ""


def test_every_page_fits_the_screen_without_script(window: Window, island: Island, scene: Scene) -> None:
    page = window(look=Viewport(script=False))
    for name, path in {**scene.pages, **scene.admin_pages}.items():
        assert page.goto(island.server.console_url + path).status == 200, name
        is_narrow_in_every_size(page)


def check(page: Any, name: str, found: dict[str, list[str]]) -> None:
    page.evaluate(AXE.read_text())
    page.evaluate(NO_FADING)
    for look, rules in ((Viewport(), []), (Viewport(is_phone=True, is_dark=True), OF_COLOUR + OF_LAYOUT)):
        page.set_viewport_size({"width": look.width, "height": look.height})
        page.emulate_media(color_scheme="dark" if look.is_dark else "light")
        found[f"{name} in {look}"] = list(page.evaluate(CHECK, rules))
    page.set_viewport_size(DESK.options["viewport"])
    page.emulate_media(color_scheme="light")


def luminance(page: Any, selector: str, css_property: str) -> float:
    colour = page.locator(selector).first.evaluate(
        f"e => getComputedStyle(e).getPropertyValue('{css_property}')"
    )
    red, green, blue = (int(part) for part in colour.strip("rgba()").split(",")[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@with_script_and_without
def test_dark_is_dark_and_light_is_light(
    window: Window, island: Island, scene: Scene, script: Viewport
) -> None:
    page = window(look=script)
    page.goto(island.server.console_url + scene.pages["route"])
    for look in every_size_and_scheme(page):
        for selector in (".decide", ".badge-high", ".diff-added td"):
            paper, ink = (luminance(page, selector, name) for name in ("background-color", "color"))
            assert (paper < ink) is look.is_dark, selector
            assert abs(paper - ink) > 90, f"{selector} is hard to read in {look}"


@with_script_and_without
def test_a_viewer_reads_everything_and_decides_nothing(
    window: Window, island: Island, scene: Scene, script: Viewport
) -> None:
    page = window("vera", look=script)
    page.goto(island.server.console_url + scene.pages["queue"])
    card = card_about(page, "api.github.com")
    assert card.locator(".act, .pick").count() == 0 and page.locator(".bulk").count() == 0
    for name in ("route", "draft", "refusals", "bottle", "rebuild failed"):
        page.goto(island.server.console_url + scene.pages[name])
        assert page.locator("#content form[method=post]").count() == 0, name
        is_narrow_in_every_size(page)


def test_nothing_comes_from_elsewhere(window: Window, island: Island, scene: Scene) -> None:
    page = window()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for name in ("queue", "route", "bottle", "history"):
        page.goto(island.server.console_url + scene.pages[name])
    origin = island.server.console_url
    assert asked and not [url for url in asked if not url.startswith((origin, "data:image/"))]


ADMIN_PAGES = [
    "auth/user/", "auth/user/add/", "auth/user/1/change/", "auth/group/add/", "botbottle/bottle/",
    "egress/publication/", "egress/routetableversion/", "supervise/apikey/", "supervise/decision/",
    "supervise/proposal/",
]  # fmt: skip


@with_script_and_without
def test_the_admin_works_under_the_same_policy(
    window: Window, island: Island, scene: Scene, script: Viewport
) -> None:
    page = window(look=script)
    for path in ADMIN_PAGES:
        assert page.goto(f"{island.server.console_url}/admin/{path}").status == 200, path
    page.locator("#result_list tbody th a").first.click()
    page.wait_for_selector("pre.hostile")
