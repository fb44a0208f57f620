"""Takes the pictures of the README and the docs: `make screenshots`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.browser.island import QUIET_BROWSER, Island, running_island
from tests.servers import ROOT, stop

IMAGES = ROOT / "docs" / "images"
WIDE, PHONE = {"width": 1180, "height": 640}, {"width": 390, "height": 844}
ASKS = [
    {
        "host": "docs.python.org",
        "path_allowlist": ["/3/library"],
        "methods": ["GET", "HEAD"],
        "lease": {"ttl_seconds": 3600},
        "justification": "I have to check the asyncio reference before I change the event loop code.",
    },
    {
        "host": "api.github.com",
        "path_allowlist": ["/repos/acme/site/releases"],
        "methods": ["GET", "POST"],
        "auth": {"scheme": "Bearer", "token_ref": "GITHUB_TOKEN"},
        "justification": "To publish the notes of v2.4.0 I have to create a release.",
    },
]


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as root,
        running_island(Path(root)) as island,
        sync_playwright() as play,
    ):
        bottle = island.server.create_bottle("release-bot")
        calls = [island.ask(bottle, "egress-block", **ask) for ask in ASKS]
        browser = play.chromium.launch(
            executable_path=str(island.browser_command()), args=list(QUIET_BROWSER), headless=True
        )
        page = browser.new_page(viewport=WIDE)
        _sign_in(page, island)
        for _ in range(100):  # what arrives later would wait behind a pill
            if page.locator("article.card").count() == len(ASKS):
                break
            page.wait_for_timeout(100)
            page.reload()
        _take(page, "queue", "#connection[data-state=connected]")
        card = page.locator("article.card").first.get_attribute("data-link") or "/"
        page.goto(island.server.console_url + card)
        _take(page, "proposal", "main", whole=True)
        page.goto(f"{island.server.console_url}/bottles/release-bot/")
        _take(page, "bottle", "main", whole=True)
        phone = browser.new_page(viewport=PHONE, color_scheme="dark", device_scale_factor=2)
        _sign_in(phone, island)
        _take(phone, "phone", "#connection[data-state=connected]")
        browser.close()
        for call in calls:
            stop(call)


def _sign_in(page: Page, island: Island) -> None:
    page.goto(island.server.console_url)
    page.fill("#id_username", "operator")
    page.fill("#id_password", island.server.password)
    page.click("input[type=submit]")


def _take(page: Page, name: str, once: str, *, whole: bool = False) -> None:
    page.wait_for_selector(once)
    IMAGES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=IMAGES / f"{name}.png", full_page=whole)


if __name__ == "__main__":
    main()
