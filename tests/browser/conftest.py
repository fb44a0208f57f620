"""One island with a server and operators; a fresh bottle and fresh browser windows for each test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from tests.support.console_page import Agent
from tests.support.identity_provider import CLIENT
from tests.support.isolated_browser import QUIET_BROWSER, Island, require_island, running_island
from tests.support.requirements import require
from tests.support.server_shell import Errands, running_errands
from tests.support.timeouts import PATIENCE
from tests.support.viewports import DESK, Viewport

PASSWORD = "correct-horse-battery"
OTHERS = """
from django.contrib.auth.models import Group, User
User.objects.create_superuser("otto", password=given["password"])
viewer = User.objects.create_user("vera", password=given["password"], is_staff=True)
viewer.groups.add(Group.objects.get(name="viewer"))
"""
FILE = """
from django.db import transaction
from egress.policy.asks import parse_egress_ask
from supervise.bottles import records as bottles
from supervise.proposals.submit import submit_proposal
bottle = bottles.get(given["slug"])
with transaction.atomic():
    for number in range(given["count"]):
        ask = {"host": f"{given['name']}{number}.example.com", "path_allowlist": ["/x"], "methods": ["GET"]}
        submit_proposal(bottle, "egress-block", parse_egress_ask(ask | given["more"]), "filed by a test")
"""
# Chromium calls these errors; for a form that was refused they are the answer.
REFUSED_FORM = ("status of 400 (Bad Request)", "status of 409 (Conflict)")
# Nothing happens on it, and it is of the same site: from elsewhere the way back costs a new process.
RESTING_PLACE = "/static/supervise/shared/icon.svg"
# The console knows a provider: `localhost` is another site than `127.0.0.1`.
PROVIDER_PORT = 8100
ORGANISATION = {
    "OIDC_ISSUER": f"http://localhost:{PROVIDER_PORT}",
    "OIDC_CLIENT_ID": CLIENT,
    "OIDC_CLIENT_SECRET": "of-the-client",
    "OIDC_OPERATOR_GROUP": "ops",
}
Window = Callable[..., Any]
Bottles = Callable[[str], dict[str, str]]
Asked = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def island(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Island]:
    require_island()
    root = tmp_path_factory.mktemp("island")
    with running_island(root, SUPERVISE_RESPONSE_TIMEOUT_SECONDS="600", **ORGANISATION) as running:
        yield running


@pytest.fixture(autouse=True)
def calls_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """Also those of a test that failed before it read their answers."""
    yield
    if "island" in request.fixturenames:
        request.getfixturevalue("island").agents.hang_up()


@pytest.fixture(scope="session")
def errands(island: Island) -> Iterator[Errands]:
    with running_errands(island.server) as running:
        running.run(OTHERS, password=PASSWORD)
        yield running


@pytest.fixture(scope="session")
def signed_in() -> dict[str, Any]:
    """What a browser keeps of each user who signed in once: signing in costs most of a short test."""
    return {}


@pytest.fixture
def bottles(errands: Errands) -> Iterator[Bottles]:
    """Makes bottles that end with the test and take their proposals along."""
    made: list[str] = []

    def make(slug: str) -> dict[str, str]:
        made.append(slug)
        return errands.create_bottle(slug)

    yield make
    for slug in made:
        errands.delete_bottle(slug)


NUMBERS = count(1)


@pytest.fixture
def agent(island: Island, bottles: Bottles) -> Agent:
    return Agent(island, bottles(f"docs-bot-{next(NUMBERS)}"))


@pytest.fixture
def asked(bottles: Bottles, errands: Errands) -> Asked:
    """Files proposals of a bottle of their own."""

    def ask(slug: str, count: int, name: str, **more: Any) -> dict[str, str]:
        created = bottles(slug)
        errands.run(FILE, slug=slug, count=count, name=name, more=more)
        return created

    return ask


@pytest.fixture(scope="session")
def chromium(island: Island) -> Iterator[tuple[Any, asyncio.AbstractEventLoop]]:
    """One for all modules, with the event loop that it leaves running between two calls."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        require(None, "Playwright", "pip install -r requirements-dev.txt")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(island.browser_command()), args=list(QUIET_BROWSER), headless=True
        )
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        yield browser, loop
        asyncio._set_running_loop(loop)
        browser.close()


@pytest.fixture(scope="module")
def browser(chromium: tuple[Any, asyncio.AbstractEventLoop]) -> Iterator[Any]:
    """Its loop is the running one only in modules that use it: others run loops of their own."""
    asyncio._set_running_loop(chromium[1])
    yield chromium[0]
    asyncio._set_running_loop(None)


def is_fault(said: Any) -> bool:
    return said.type == "error" and not any(answer in said.text for answer in REFUSED_FORM)


def is_about_the_resting_place(said: Any) -> bool:
    """A picture names no icon of its own: Chromium asks for one."""
    return said.location["url"].endswith("/favicon.ico") and said.page.url.endswith(RESTING_PLACE)


def sign_in(page: Any, island: Island, user: str = "operator") -> None:
    page.fill("#id_username", user)
    page.fill("#id_password", island.server.password if user == "operator" else PASSWORD)
    page.click("input[type=submit]")


class Windows:
    """Windows of signed-in operators. The next test uses them again, unless what they keep changes."""

    def __init__(self, browser: Any, island: Island, signed_in: dict[str, Any]) -> None:
        self._browser, self._home, self._island = browser, island.server.console_url, island
        self._signed_in = signed_in
        self._idle: dict[tuple[str, Viewport], Any] = {}
        self._busy: dict[tuple[str, Viewport], Any] = {}
        self._fresh: list[Any] = []
        self._problems: list[str] = []

    def open(
        self, user: str = "operator", look: Viewport = DESK, *, is_fresh: bool = False, **options: Any
    ) -> Any:
        """`is_fresh`: for a test that changes what the browser keeps. So are windows with options."""
        page = self._page(user, look, is_fresh or bool(options) or (user, look) in self._busy, options)
        page.goto(self._home)
        if page.locator("#id_password").count():
            sign_in(page, self._island, user)
            page.wait_for_url(f"{self._home}/")
            self._signed_in[user] = page.context.storage_state()
        if look.script:
            page.wait_for_selector("#connection[data-state=connected]")
        return page

    def _page(self, user: str, look: Viewport, is_fresh: bool, options: dict[str, Any]) -> Any:
        if not is_fresh and (user, look) in self._idle:
            self._busy[user, look] = self._idle.pop((user, look))
            return self._busy[user, look]
        context = self._browser.new_context(
            **{**look.options, **options}, storage_state=self._signed_in.get(user)
        )
        context.set_default_timeout(1000 * PATIENCE)
        page = context.new_page()
        page.on("console", self._note)
        page.on("pageerror", lambda error: self._problems.append(f"{page.url}: {error}"))
        page.on("dialog", lambda box: (self._problems.append(f"{page.url}: {box.message}"), box.dismiss()))
        if is_fresh:
            self._fresh.append(context)
        else:
            self._busy[user, look] = page
        return page

    def _note(self, said: Any) -> None:
        if is_fault(said) and not is_about_the_resting_place(said):
            self._problems.append(f"{said.page.url}: {said.text}")

    def put_away(self) -> None:
        """No error, CSP violation or dialog may have appeared in any of them."""
        for context in self._fresh:
            context.close()
        for (_, look), page in self._busy.items():
            page.wait_for_load_state()
            page.goto(f"{self._home}{RESTING_PLACE}")
            page.set_viewport_size(look.options["viewport"])
            page.emulate_media(color_scheme=look.options["color_scheme"])
        self._idle |= self._busy
        self._fresh, self._busy = [], {}
        problems, self._problems = self._problems, []
        assert problems == []


@pytest.fixture(scope="session")
def windows(
    chromium: tuple[Any, Any], island: Island, errands: Errands, signed_in: dict[str, Any]
) -> Windows:
    return Windows(chromium[0], island, signed_in)


@pytest.fixture
def window(browser: Any, windows: Windows) -> Iterator[Window]:
    yield windows.open
    windows.put_away()
