"""Every flow of the console in Chromium: keys, snooze, stop asking, several at once, filters, many cards."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import Window
from tests.browser.island import HERE, Island
from tests.browser.test_queue_page import Agent, answer_to, card_about, open_panel, reject, said, text_of
from tests.requirements import require
from tests.servers import ROOT, stop

pytestmark = [pytest.mark.browser, pytest.mark.process]
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
FILE = """
from supervise import bottles
from supervise.filing import file_proposal
bottle = bottles.get("{slug}")
for number in range({count}):
    ask = {{"host": f"{name}{{number}}.example.com", "path_allowlist": ["/x"], "methods": ["GET"]}}
    file_proposal(bottle, "egress-block", ask | {more}, "filed by a test")
"""
LEASED = {"lease": {"ttl_seconds": 600}}
ENOUGH_FOR_A_PAGE = 5000  # elements, with a full queue on it


@pytest.fixture
def agent(island: Island, bottle: dict[str, str]) -> Agent:
    return Agent(island, bottle)


@pytest.fixture
def asked(island: Island) -> Iterator[Any]:
    """Files proposals of a bottle of their own, which ends with the test and takes them along."""
    made: list[str] = []

    def ask(slug: str, count: int, name: str, **more: Any) -> dict[str, str]:
        made.append(slug)
        created = island.server.create_bottle(slug)
        island.server.manage("shell", "-c", FILE.format(slug=slug, count=count, name=name, more=more))
        return created

    yield ask
    for slug in made:
        island.server.manage("bottle", "delete", slug)


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def focused(page: Any) -> str:
    return str(page.evaluate("(document.activeElement.querySelector('h2') || {}).innerText || ''"))


# --- Keys


def test_keys_move_open_and_search_and_decide_nothing(window: Window, asked: Any) -> None:
    asked("keys-bot", 3, "key")
    page = window()
    page.goto(page.url + "?bottle=keys-bot")
    page.wait_for_selector("#connection[data-state=connected]")
    press(page, "j")
    assert focused(page) == "key0.example.com"
    press(page, "j", "j", "j", "k")
    assert focused(page) == "key1.example.com"
    for key, panel in {"o": "", "e": "modify", "r": "reject", "s": "snooze", "a": "approve"}.items():
        press(page, key)
        page.wait_for_selector("#sheet[open] .detail")
        assert page.locator("#sheet details.panel[open]").count() == (1 if panel else 0)
        if panel:
            assert page.locator(f"#sheet .panel-{panel}[open]").count() == 1
        press(page, "Escape")
        page.wait_for_selector("#sheet", state="hidden")
        assert focused(page) == "key1.example.com", "the focus comes back to the card"
    press(page, "x")
    assert page.locator(".bulk").is_visible()
    press(page, "?")
    assert page.locator("#keys").is_visible()
    press(page, "Escape", "/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("jkoear")
    assert page.locator("#search").input_value() == "jkoear", "in a field keys are letters"
    assert page.locator("article.card[data-status=pending]").count() == 3


# --- Snooze, stop asking


def test_a_snoozed_card_goes_for_everybody_and_comes_back(window: Window, asked: Any) -> None:
    asked("snooze-bot", 2, "nap")
    mine, others = window(), window("otto")
    for page in (mine, others):
        page.goto(page.url + "?bottle=snooze-bot")
        page.wait_for_selector("#connection[data-state=connected]")
    open_panel(card_about(mine, "nap0"), "Snooze").get_by_role("button", name="until tomorrow").click()
    assert "Put aside until" in said(mine)
    card = mine.locator("article.card.is-snoozed", has_text="nap0")
    card.wait_for()
    assert "put aside by operator" in card.inner_text()
    others.locator("article.card.is-snoozed", has_text="nap0").wait_for()
    others.goto(others.url + "&show=snoozed")
    card_about(others, "nap0").get_by_text("Wake…").click()
    others.get_by_role("button", name="Back into the queue now").click()
    assert "Back in the queue" in said(others)


def test_stop_asking_answers_the_next_ask_at_once(window: Window, agent: Agent, island: Island) -> None:
    page = window()
    call = agent.asks("enough.example.com")
    panel = open_panel(card_about(page, "enough.example.com"), "Reject")
    panel.locator("textarea").fill("We have a mirror for that.")
    panel.get_by_label("and stop asking").check()
    panel.get_by_role("button", name="Reject").click()
    assert "Rejected" in said(page)
    text_of(call)
    again = answer_to(agent.asks("enough.example.com", justification="Please, please."))
    assert again["isError"] and "We have a mirror for that." in again["content"][0]["text"]
    page.goto(f"{island.server.console_url}/refusals/")
    line = page.locator(".line-item", has_text="enough.example.com")
    assert "answered 1 time" in line.inner_text()
    line.get_by_role("button", name="Lift").click()
    assert "is a card again" in said(page)
    page.goto(island.server.console_url)
    waiting = agent.asks("enough.example.com")
    reject(page, "enough.example.com")
    text_of(waiting)


# --- Modify with a live preview


def test_the_preview_follows_the_edit(window: Window, agent: Agent) -> None:
    page = window()
    call = agent.asks("edit.example.com", methods=["GET", "POST"])
    panel = open_panel(card_about(page, "edit.example.com"), "Modify")
    preview = page.locator("#sheet .preview")
    preview.get_by_text("all paths of edit.example.com").wait_for()
    panel.locator("textarea[name=paths]").fill("/only/this")
    preview.get_by_text("GET, POST on edit.example.com under /only/this").wait_for()
    panel.get_by_label("POST").uncheck()
    preview.get_by_text("newly reachable: GET on edit.example.com under /only/this").wait_for()
    panel.get_by_label("Scheme").select_option("Bearer")
    panel.get_by_label("Secret’s name").fill("not a name")
    preview.get_by_text("auth.token_ref must name a secret").wait_for()
    panel.get_by_label("Secret’s name").fill("DOCS_TOKEN")
    preview.get_by_text("carries the credential DOCS_TOKEN").wait_for()
    panel.get_by_label("Scheme").select_option("")
    panel.get_by_label("Secret’s name").fill("")
    panel.locator("textarea[name=note]").fill("less will do")
    panel.locator("textarea[name=note]").press("Control+Enter")
    assert "Modified: edit.example.com" in said(page)
    granted = answer_to(call)["structuredContent"]["granted"]
    assert (granted["path_allowlist"], granted["methods"]) == (["/only/this"], ["GET"])


# --- Several at once


@pytest.mark.parametrize("script", [True, False], ids=["script", "plain"])
def test_several_are_decided_through_a_page_that_lists_them(
    window: Window, asked: Any, island: Island, script: bool
) -> None:
    slug = f"bulk-bot-{'script' if script else 'plain'}"
    asked(slug, 3, "many", **LEASED)
    page = window(java_script_enabled=script)
    page.goto(f"{island.server.console_url}/?bottle={slug}")
    assert not page.locator(".bulk").is_visible()
    for number in (0, 1):
        card_about(page, f"many{number}").locator(".pick").check()
    page.locator(".bulk").get_by_role("button", name="Approve low risk").click()
    assert page.locator(".line-item").count() == 2
    page.get_by_role("button", name="Approve 2 proposals").click()
    report = page.locator("#content").inner_text()
    assert "2 of 2 decided." in report and report.count("→ live v") == 2
    page.goto(f"{island.server.console_url}/?bottle={slug}")
    card_about(page, "many2").locator(".pick").check()
    page.locator(".bulk").get_by_role("button", name="Reject").click()
    page.get_by_label("Reason").fill("enough for today")
    page.get_by_role("button", name="Reject 1 proposal").click()
    assert "1 of 1 decided." in page.locator("#content").inner_text()


# --- Filters, links, times


def test_filters_stay_in_the_address_and_hold_for_arrivals(
    window: Window, agent: Agent, asked: Any, island: Island
) -> None:
    asked("filter-bot", 2, "fil", **LEASED)
    page = window()
    page.fill("#search", "fil1")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"\?q=fil1$"))
    assert page.locator("article.card h2").all_inner_texts() == ["fil1.example.com"]
    page.wait_for_selector("#connection[data-state=connected]")
    before = int(page.locator("#pending-count").inner_text())
    call = agent.asks("unrelated.example.com")
    page.locator(f"#pending-count:text-is('{before + 1}')").wait_for()
    page.wait_for_timeout(1500)
    assert page.locator("#new-cards").is_hidden(), "what the filter leaves out is no news here"
    page.locator("select[name=risk]").select_option("high")
    page.get_by_text("Nothing fits this filter.").wait_for()
    page.goto(island.server.console_url)
    reject(page, "unrelated.example.com")
    text_of(call)


def test_a_link_to_a_card_survives_the_sign_in(browser: Any, island: Island, asked: Any) -> None:
    asked("link-bot", 1, "deep")
    listed = json.loads(island.server.manage("proposals", "list", "--bottle", "link-bot", "--json"))
    address = f"{island.server.console_url}/proposals/{listed[0]['id']}/?open=reject"
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    page.fill("#id_username", "operator")
    page.fill("#id_password", island.server.password)
    page.click("input[type=submit]")
    assert page.url == address
    assert page.locator(".panel-reject[open]").count() == 1
    context.close()


def test_times_are_the_readers_with_utc_on_hover(window: Window, asked: Any) -> None:
    asked("time-bot", 1, "clock")
    page = window(timezone_id="Asia/Tokyo", locale="en-GB")
    time = card_about(page, "clock0").locator("time").first
    assert re.fullmatch(r"just now|\d+ minutes? ago", time.inner_text())
    title = time.get_attribute("title")
    local, utc = re.fullmatch(r".*?(\d\d):\d\d, \S+ (\d\d):\d\d:\d\d UTC", title).groups()
    assert (int(local) - int(utc)) % 24 == 9


def test_notification_and_sound_are_asked_for_and_carry_no_agents_text(window: Window, agent: Agent) -> None:
    page = window(permissions=["notifications"])
    page.evaluate(
        """() => { window.told = []; window.Notification = class { static permission = "granted";
        static async requestPermission() { return "granted"; }
        constructor(title, options) { told.push([title, options.body]); } addEventListener() {} };
        Object.defineProperty(document, "hidden", { get: () => true }); }"""
    )
    assert page.locator("#notify").get_attribute("aria-pressed") == "false", "off until somebody wants it"
    page.click("#notify")
    page.locator("#notify[aria-pressed=true]").wait_for()
    call = agent.asks("evil-words.example.com", justification="evil words")
    card_about(page, "evil-words.example.com")
    told = page.evaluate("told")
    assert len(told) == 1
    assert re.fullmatch(r"\d+ proposals? waits?(, \d+ of high risk)?", told[0][1])
    reject(page, "evil-words.example.com")
    text_of(call)


# --- Phone and desk, light and dark, with script and without


@pytest.mark.parametrize("script", [True, False], ids=["script", "plain"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_every_page_fits_and_its_buttons_are_within_reach(
    window: Window, asked: Any, viewport: dict[str, int], scheme: str, script: bool
) -> None:
    slug = f"fits-{viewport['width']}-{scheme}-{'s' if script else 'p'}"
    asked(slug, 6, "a-rather-long-name-that-has-to-wrap-somewhere.and-a-department")
    page = window(viewport=viewport, color_scheme=scheme, java_script_enabled=script)
    home = page.url
    page.goto(f"{home}?bottle={slug}")
    link = page.locator("article.card").first.get_attribute("data-link").lstrip("/")
    pick = page.locator(".pick").first.get_attribute("value")
    page.locator(".pick").first.check()
    bar = page.locator(".bulk").bounding_box()
    assert bar["y"] + bar["height"] <= viewport["height"] and bar["x"] + bar["width"] <= viewport["width"]
    for path in (
        f"?bottle={slug}",
        link,
        f"{link}?open=modify",
        f"bulk/?verb=reject&id={pick}",
        "refusals/",
        "history/",
    ):
        page.goto(home + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], path
    page.goto(f"{home}{link}?open=reject")
    for name in ("Approve…", "Modify…", "Reject…", "Snooze…"):
        box = page.locator(".decide").get_by_text(name, exact=True).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= viewport["width"]
        if viewport is NARROW:
            assert box["y"] + box["height"] <= viewport["height"], "the bar is at the bottom of the screen"
            assert box["height"] >= 40
    page.locator(".panel-reject textarea").fill("done looking")
    page.locator(".panel-reject").get_by_role("button").click()
    assert "Rejected" in said(page)


# --- Accessibility

AXE = ROOT / ".cache" / "clients" / "node_modules" / "axe-core" / "axe.min.js"
CHECK = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
  .filter((found) => ["serious", "critical"].includes(found.impact))
  .map((found) => `${found.id}: ${found.nodes.slice(0, 3).map((node) => node.html).join(" | ")}`)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_axe_finds_nothing_serious(
    window: Window, asked: Any, island: Island, viewport: dict[str, int], scheme: str
) -> None:
    require(AXE.is_file(), "axe-core", "tests/clients/install")
    slug = f"axe-{viewport['width']}-{scheme}"
    asked(slug, 2, "axe", auth={"scheme": "Bearer", "token_ref": "TOKEN"})
    page = window(viewport=viewport, color_scheme=scheme)
    home = page.url
    page.goto(f"{home}?bottle={slug}")
    page.wait_for_selector("#connection[data-state=connected]")
    link = page.locator("article.card").first.get_attribute("data-link").lstrip("/")
    pick = page.locator(".pick").first.get_attribute("value")
    found = {"queue": checked(page)}
    open_panel(card_about(page, "axe0"), "Modify")
    page.locator("#sheet .preview", has_text="With these changes").wait_for()
    found["sheet"] = checked(page)
    bulk = f"bulk/?verb=reject&id={pick}"
    pages = ("refusals/", "history/", "bottles/", f"bottles/{slug}/")
    for path in (link, f"{link}?open=reject", bulk, *pages):
        page.goto(home + path)
        found[path] = checked(page)
    assert "\n".join(f"{path}: {problem}" for path, problems in found.items() for problem in problems) == ""


def checked(page: Any) -> list[str]:
    page.evaluate(AXE.read_text())
    return list(page.evaluate(CHECK))


# --- Many


def test_500_pending_and_50_arrivals_a_second_leave_the_page_usable(
    window: Window, asked: Any, island: Island
) -> None:
    asked("flood-a", 490, "old", **LEASED)
    bottle = asked("flood-b", 10, "older", **LEASED)
    page = window()
    page.evaluate("window.stayed = true")
    assert page.locator("article.card").count() == 50
    first = page.locator("article.card").first
    name, place = first.locator("h2").inner_text(), first.bounding_box()
    flood = subprocess.Popen(
        island.inside(sys.executable, str(HERE / "flood.py")),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=island.server.environment,
    )  # fmt: skip
    try:
        assert flood.stdin and flood.stdout
        plan = {"url": bottle["mcp_url"], "token": bottle["token"], "calls": 250, "a_second": 50, "hold": 60}
        flood.stdin.write(json.dumps(plan))
        flood.stdin.close()
        flood.stdin = None
        page.locator("#new-cards", has_text="new: show").wait_for()
        press(page, "j", "o")  # in the middle of it
        page.wait_for_selector("#sheet[open] .detail", timeout=10_000)
        press(page, "Escape")
        assert flood.stdout.readline() == "sent\n"
        page.locator("#pending-count:text-matches('7[45][0-9]')").wait_for()
        page.locator("#new-cards:text-is('250 new: show')").wait_for()
        assert page.locator("article.card").count() == 50
        assert page.evaluate("document.querySelectorAll('*').length") < ENOUGH_FOR_A_PAGE
        assert first.locator("h2").inner_text() == name
        first.wait_for()  # it may just be drawn anew
        assert (first.bounding_box() or place)["x"] == place["x"]
        assert page.evaluate("window.stayed"), "without a reload"
        page.locator("#new-cards").click()
        page.locator("#after strong:text-matches('7[0-9][0-9]|69[0-9]')").wait_for()
        assert page.locator("article.card").count() == 50
    finally:
        stop(flood)
        if flood.stdout:
            flood.stdout.close()
