"""Takes the pictures of the README and the docs: `make screenshots`."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.support import ROOT
from tests.support.isolated_browser import ORIGIN, QUIET_BROWSER, Island, running_island
from tests.support.server import stop
from tests.support.timeouts import wait_until

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
        phone = browser.new_page(viewport=PHONE, color_scheme="dark", device_scale_factor=2)
        _sign_in(phone, island)
        _take(phone, "phone", "#connection[data-state=connected]")
        _work(island, bottle, calls)
        page.goto(f"{island.server.console_url}/bottles/release-bot/")
        for _ in range(100):  # records of traffic come in batches
            if page.locator(".plot-allowed").count() and page.locator(".plot-refused").count():
                break
            page.wait_for_timeout(100)
            page.reload()
        _take(page, "bottle", "main", whole=True)
        browser.close()
        for call in calls:
            stop(call)


def _work(island: Island, bottle: dict[str, str], calls: list[subprocess.Popen[str]]) -> None:
    """The bottle's routes are granted, and its agent uses one and tries others."""
    route = {"path_allowlist": ["/repos"], "methods": ["GET"], "justification": "The build reads the notes."}
    calls.append(island.ask(bottle, "egress-block", host=ORIGIN, **route))
    pending = wait_until(lambda: _pending(island, len(calls)), what="the last ask")
    for proposal in pending:
        island.server.manage("proposals", "approve", proposal, "--note", "For this release.")
    with island.origin():
        for number in range(5):
            island.curl(bottle, f"https://{ORIGIN}/repos/{number}")
    for host in ("telemetry.example.net", "telemetry.example.net", "registry.example.org"):
        island.curl(bottle, f"http://{host}/v1")


def _pending(island: Island, count: int) -> list[str]:
    listed = json.loads(island.server.manage("proposals", "list", "--json"))
    return [str(line["id"]) for line in listed] if len(listed) == count else []


def _sign_in(page: Page, island: Island) -> None:
    page.goto(island.server.console_url)
    page.fill("#id_username", "operator")
    page.fill("#id_password", island.server.password)
    page.click("input[type=submit]")


def _take(page: Page, name: str, once: str, *, whole: bool = False) -> None:
    page.wait_for_selector(once)
    IMAGES.mkdir(parents=True, exist_ok=True)
    if whole:  # with room for all of it, or a bar that keeps to the window's end would lie across it
        page.set_viewport_size({**WIDE, "height": page.evaluate("document.documentElement.scrollHeight")})
    page.screenshot(path=IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()
