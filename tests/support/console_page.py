"""What agents and operators do in these tests: ask over MCP; find a card, open its form, read the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.island_agents import Call
from tests.support.isolated_browser import Island
from tests.support.timeouts import until_patience_ends
from tests.support.viewports import every_size


class Agent:
    """Asks over MCP and reads the answers."""

    def __init__(self, island: Island, bottle: dict[str, str]) -> None:
        self.island, self.bottle, self.slug = island, bottle, bottle["slug"]

    def asks(self, host: str, **more: Any) -> Call:
        arguments = {"host": host, "justification": "The task needs it.", **more}
        return self.island.ask(self.bottle, "egress-block", **arguments)

    def says(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self.island.ask(self.bottle, tool, **arguments).result()


def text_of(call: Call) -> str:
    return str(call.result()["content"][0]["text"])


def card_about(page: Any, host: str) -> Any:
    """The card, once it is there: behind the pill with script, after a reload without."""
    card = page.locator("article.card", has=page.locator("h2", has_text=host))
    pill = page.locator("#new-cards:visible")
    for _ in looks(page):
        if card.count():
            return card
        if page.locator("noscript p, noscript").count() and not has_script(page):
            page.reload()
        elif pill.count():
            pill.evaluate("pill => pill.click()")  # it may go away in this instant
    raise AssertionError(f"no card about {host}")


def looks(page: Any) -> Iterator[None]:
    """One after the other, a moment apart, for as long as there is any hope."""
    for _ in until_patience_ends():
        yield
        page.wait_for_timeout(100)


def has_script(page: Any) -> bool:
    return bool(page.locator("#connection[data-state]").count())


def open_panel(card: Any, verb: str) -> Any:
    """The form in the dialog, or without script on the proposal's own page."""
    card.get_by_text(f"{verb}…", exact=True).click()
    panel = card.page.locator(f".panel-{verb.lower()}[open]")
    panel.wait_for(state="attached")
    return panel


def said(page: Any) -> str:
    page.wait_for_selector("#sheet", state="hidden")
    page.wait_for_selector(".messagelist")
    return str(page.locator(".messagelist").inner_text())


def reject(page: Any, host: str) -> None:
    panel = open_panel(card_about(page, host), "Reject")
    panel.locator("textarea").fill("not now")
    panel.get_by_role("button", name="Reject").click()
    assert "Rejected" in said(page)


def fits_every_look(page: Any) -> None:
    """Dark need not be measured: it is compared with light, in each size."""
    for look in every_size(page):
        assert fits(page), f"{page.url} in {look}"


def is_narrow_in_every_size(page: Any) -> None:
    """For a page whose colours are compared elsewhere: without script it has the same style."""
    for look in every_size(page):
        assert is_narrow(page), f"{page.url} in {look}"


def fits(page: Any) -> bool:
    """Nothing makes the page wider than the screen, in light or dark, which are alike but for colours."""
    return is_narrow(page) and is_alike_in_light_and_dark(page)


def is_narrow(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


# Where everything is, whether it can be seen, and what a click or a key there would reach.
SHAPE = """() => [...document.querySelectorAll("html, body, body *")].map((each) => {
  const { x, y, width, height } = each.getBoundingClientRect();
  const { visibility, opacity, pointerEvents, position, zIndex, overflow } = getComputedStyle(each);
  return [each.tagName, x, y, width, height, visibility, opacity, pointerEvents, position, zIndex, overflow,
    each.disabled, each.tabIndex, each.checkVisibility()].join(" ");
}).join("\\n")"""


def is_alike_in_light_and_dark(page: Any) -> bool:
    """What works in one scheme works in the other, because nothing but colours changes."""
    is_dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    own, other = ("dark", "light") if is_dark else ("light", "dark")
    for _ in range(50):
        before = page.evaluate(SHAPE)
        page.emulate_media(color_scheme=other)
        changed = page.evaluate(SHAPE)
        page.emulate_media(color_scheme=own)
        if changed == before:
            return True
        if page.evaluate(SHAPE) == before:  # or something happened meanwhile: a time was told anew
            return False
    raise AssertionError(f"{page.url} does not come to rest")


def until(page: Any, found: Any) -> Any:
    """Reloads until it is there: records are read in batches, a moment later."""
    for _ in looks(page):
        if found.count():
            return found
        page.reload()
    raise AssertionError(f"not on {page.url}: {found}")
