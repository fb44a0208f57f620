"""Signing in through a provider on another site, in Chromium: its redirect does not bring our cookie."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import identity_provider
from tests.support.identity_provider import CLIENT
from tests.support.isolated_browser import QUIET_BROWSER, Island, require_island, running_island
from tests.support.server import stop

pytestmark = [pytest.mark.browser, pytest.mark.process]
PORT = 8100


@pytest.fixture(scope="module")
def organisation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Island]:
    """A console that knows a provider: `localhost` is another site than `127.0.0.1`."""
    require_island()
    variables = {
        "OIDC_ISSUER": f"http://localhost:{PORT}",
        "OIDC_CLIENT_ID": CLIENT,
        "OIDC_CLIENT_SECRET": "of-the-client",
        "OIDC_OPERATOR_GROUP": "ops",
    }
    with running_island(tmp_path_factory.mktemp("island"), **variables) as island:
        program = Path(identity_provider.__file__)
        provider = subprocess.Popen(
            island.inside(sys.executable, str(program), str(PORT)), stdout=subprocess.PIPE, text=True
        )
        try:
            assert provider.stdout and provider.stdout.readline() == "ready\n"
            yield island
        finally:
            stop(provider)
            if provider.stdout:
                provider.stdout.close()


@pytest.mark.parametrize("script", [True, False], ids=["script", "plain"])
def test_an_operator_signs_in_through_the_organisation(organisation: Island, script: bool) -> None:
    from playwright.sync_api import sync_playwright

    console, problems = organisation.server.console_url, []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(organisation.browser_command()), args=list(QUIET_BROWSER), headless=True
        )
        page: Any = browser.new_context(java_script_enabled=script).new_page()
        page.on("console", lambda said: said.type == "error" and problems.append(said.text))
        page.goto(f"{console}/history/")
        page.get_by_role("link", name="Sign in through your organisation").click()
        page.wait_for_url(f"{console}/history/")
        assert "olivia+" in page.locator("#user-tools").inner_text().lower()
        page.goto(console)
        assert page.locator(".console-nav").is_visible()
        browser.close()
    assert problems == []
