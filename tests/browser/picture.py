"""Takes the README's picture of the queue: `python -m tests.browser.picture`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.island import QUIET_BROWSER, running_island
from tests.servers import ROOT, stop

PICTURE = ROOT / "docs" / "images" / "queue.png"
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
        page = browser.new_page(viewport={"width": 1180, "height": 1010})
        page.goto(island.server.console_url)
        page.fill("#id_username", "operator")
        page.fill("#id_password", island.server.password)
        page.click("input[type=submit]")
        for _ in range(100):  # what arrives later would wait behind a pill
            if page.locator("article.card").count() == len(ASKS):
                break
            page.wait_for_timeout(100)
            page.reload()
        page.wait_for_selector("#connection[data-state=connected]")
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURE)
        browser.close()
        for call in calls:
            stop(call)


if __name__ == "__main__":
    main()
