"""Signing in through a provider on another site, in Chromium: its redirect does not bring our cookie."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import PROVIDER_PORT
from tests.support import identity_provider
from tests.support.isolated_browser import Island
from tests.support.server import stop

pytestmark = [pytest.mark.browser, pytest.mark.process]


@pytest.fixture(scope="module")
def provider(island: Island) -> Iterator[None]:
    program = str(Path(identity_provider.__file__))
    process = subprocess.Popen(
        island.inside(sys.executable, program, str(PROVIDER_PORT)), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout and process.stdout.readline() == "ready\n"
        yield
    finally:
        stop(process)
        if process.stdout:
            process.stdout.close()


@pytest.mark.parametrize("script", [True, False], ids=["script", "plain"])
def test_an_operator_signs_in_through_the_organisation(
    browser: Any, island: Island, provider: None, script: bool
) -> None:
    console, problems = island.server.console_url, []
    context = browser.new_context(java_script_enabled=script)
    page = context.new_page()
    page.on("console", lambda said: said.type == "error" and problems.append(said.text))
    page.goto(f"{console}/history/")
    page.get_by_role("link", name="Sign in through your organisation").click()
    page.wait_for_url(f"{console}/history/")
    assert "olivia+" in page.locator("#user-tools").inner_text().lower()
    page.goto(console)
    assert page.locator(".console-nav").is_visible()
    context.close()
    assert problems == []
