"""One island with a server, two operators and a bottle; a fresh browser window for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser.island import QUIET_BROWSER, Island, require_island, running_island
from tests.requirements import require

PASSWORD = "correct-horse-battery"
SECOND_OPERATOR = f"""
from django.contrib.auth.models import User
User.objects.create_superuser("otto", password="{PASSWORD}")
"""
# Chromium calls these errors; for a form that was refused they are the answer.
REFUSED_FORM = ("status of 400 (Bad Request)", "status of 409 (Conflict)")
Window = Callable[..., Any]


@pytest.fixture(scope="session")
def island(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Island]:
    require_island()
    root = tmp_path_factory.mktemp("island")
    with running_island(root, SUPERVISE_RESPONSE_TIMEOUT_SECONDS="60") as running:
        running.server.manage("shell", "-c", SECOND_OPERATOR)
        yield running


@pytest.fixture(scope="session")
def bottle(island: Island) -> dict[str, str]:
    return island.server.create_bottle("docs-bot")


@pytest.fixture(scope="module")  # it may not stay open while other modules run event loops of their own
def browser(island: Island) -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        require(None, "Playwright", "pip install -r requirements-dev.txt")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(island.browser_command()), args=list(QUIET_BROWSER), headless=True
        )
        yield browser
        browser.close()


def is_fault(said: Any) -> bool:
    return said.type == "error" and not any(answer in said.text for answer in REFUSED_FORM)


@pytest.fixture
def window(browser: Any, island: Island) -> Iterator[Window]:
    """Opens windows of signed-in operators. No error, CSP violation or dialog may appear in any of them."""
    contexts, problems = [], []

    def open_window(user: str = "operator", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: is_fault(said) and problems.append(f"{page.url}: {said.text}"))
        page.on("pageerror", lambda error: problems.append(f"{page.url}: {error}"))
        page.on("dialog", lambda dialog: (problems.append(f"{page.url}: {dialog.message}"), dialog.dismiss()))
        page.goto(island.server.console_url)
        page.fill("#id_username", user)
        page.fill("#id_password", island.server.password if user == "operator" else PASSWORD)
        page.click("input[type=submit]")
        page.wait_for_url(f"{island.server.console_url}/")
        if options.get("java_script_enabled", True):
            page.wait_for_selector("#connection[data-state=connected]")
        return page

    yield open_window
    for context in contexts:
        context.close()
    assert problems == []
