"""The real page in Chromium, against the real server, with agents that call over real MCP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from tests.browser.conftest import Window
from tests.browser.island import Island

pytestmark = [pytest.mark.browser, pytest.mark.process]


class Agent:
    """Asks over MCP and reads the answers."""

    def __init__(self, island: Island, bottle: dict[str, str]) -> None:
        self.island, self.bottle = island, bottle

    def asks(self, host: str, **more: Any) -> subprocess.Popen[str]:
        arguments = {"host": host, "justification": "The task needs it.", **more}
        return self.island.ask(self.bottle, "egress-block", **arguments)

    def says(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return answer_to(self.island.ask(self.bottle, tool, **arguments))


def answer_to(call: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = call.communicate(timeout=60)
    return dict(json.loads(out)["result"])


def text_of(call: subprocess.Popen[str]) -> str:
    return str(answer_to(call)["content"][0]["text"])


@pytest.fixture
def agent(island: Island, bottle: dict[str, str]) -> Agent:
    return Agent(island, bottle)


def card_about(page: Any, host: str) -> Any:
    """The card, once it is there: what is new waits behind the pill unless the queue was empty."""
    card = page.locator("article.card", has=page.locator("h2", has_text=host))
    pill = page.locator("#new-cards:visible")
    for _ in range(200):
        if card.count():
            return card
        if pill.count():
            pill.evaluate("pill => pill.click()")  # it may go away in this instant
        page.wait_for_timeout(100)
    raise AssertionError(f"no card about {host}")


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


def test_an_approval_wakes_the_waiting_call(window: Window, agent: Agent) -> None:
    page = window()
    call = agent.asks("approve.example.com", path_allowlist=["/docs"], methods=["GET"])
    card = card_about(page, "approve.example.com")
    assert "GET on approve.example.com under /docs" in card.inner_text()
    assert call.poll() is None, "the call waits"
    panel = open_panel(card, "Approve")
    panel.locator("textarea").fill("for this task")
    panel.get_by_role("button", name="Approve as asked").click()
    assert "Approved: approve.example.com for docs-bot → live v" in said(page)
    assert " ms." in said(page)
    answer = text_of(call)
    assert answer.startswith("status: approved")
    assert "for this task" in answer
    assert "approve.example.com" in agent.says("list-egress-routes")["content"][0]["text"]


def test_a_modification_grants_less(window: Window, agent: Agent) -> None:
    page = window()
    call = agent.asks("modify.example.com")
    panel = open_panel(card_about(page, "modify.example.com"), "Modify")
    panel.locator("textarea[name=paths]").fill("/only/this\n/and/that")
    panel.get_by_label("GET", exact=True).check()
    panel.get_by_label("Ends after").fill("2")
    assert panel.get_by_label("only these, and what").is_checked(), "writing a path chooses it"
    panel.locator(".preview", has_text="path: /and/that").wait_for()
    panel.get_by_role("button", name="Approve with these changes").click()
    assert "Modified: modify.example.com" in said(page)
    answer = answer_to(call)
    assert answer["content"][0]["text"].startswith("status: modified")
    granted = answer["structuredContent"]["granted"]
    assert (granted["path_allowlist"], granted["methods"]) == (["/and/that", "/only/this"], ["GET"])
    assert granted["lease"]["expires_at"]


def test_a_rejection_tells_the_reason(window: Window, agent: Agent) -> None:
    page = window()
    call = agent.asks("reject.example.com")
    panel = open_panel(card_about(page, "reject.example.com"), "Reject")
    panel.get_by_role("button", name="Reject").click()
    assert page.url.endswith("/"), "the browser asks for the reason before anything is sent"
    panel.locator("textarea").fill("Use the mirror instead.")
    panel.get_by_role("button", name="Reject").click()
    assert "Rejected: reject.example.com" in said(page)
    answer = answer_to(call)
    assert answer["isError"] is True
    assert "Use the mirror instead." in answer["content"][0]["text"]


def test_what_is_new_waits_behind_a_pill_and_moves_nothing(window: Window, agent: Agent) -> None:
    page = window()
    page.evaluate("window.stayed = true")
    low = agent.asks("low.example.com", path_allowlist=["/x"], methods=["GET"], lease={"ttl_seconds": 60})
    card = card_about(page, "low.example.com")
    before, place = int(page.locator("#pending-count").inner_text()), card.bounding_box()
    high = agent.asks("high.example.com", auth={"scheme": "Bearer", "token_ref": "TOKEN"})
    pill = page.get_by_role("button", name="1 new: show")
    pill.wait_for()
    assert page.locator("h2", has_text="high.example.com").count() == 0
    assert page.locator("#news").inner_text() == "1 new proposal", "a screen reader hears of it"
    assert page.title().startswith(f"({before + 1}) ")
    assert page.locator("link[rel=icon]").get_attribute("href").startswith("data:image/png")
    assert card.bounding_box()["x"] == place["x"]
    pill.click()
    card_about(page, "high.example.com")
    hosts = page.locator("article.card h2").all_inner_texts()
    assert hosts.index("high.example.com") < hosts.index("low.example.com"), "riskiest first"
    assert page.evaluate("window.stayed"), "without a reload"
    reject(page, "low.example.com")
    reject(page, "high.example.com")
    assert text_of(low).startswith("status: rejected") and text_of(high).startswith("status: rejected")


def test_a_half_made_decision_stays_while_others_arrive(window: Window, agent: Agent) -> None:
    page = window()
    first = agent.asks("first.example.com")
    panel = open_panel(card_about(page, "first.example.com"), "Reject")
    panel.locator("textarea").fill("half a sen")
    before = int(page.locator("#pending-count").inner_text())
    second = agent.asks("second.example.com", auth={"scheme": "Bearer", "token_ref": "TOKEN"})
    page.locator(f"#pending-count:text-is('{before + 1}')").wait_for()
    assert panel.locator("textarea").input_value() == "half a sen"
    page.keyboard.press("Escape")
    reject(page, "second.example.com")
    reject(page, "first.example.com")
    text_of(first), text_of(second)


def test_a_card_decided_elsewhere_greys_out_and_says_by_whom(window: Window, agent: Agent) -> None:
    mine, others = window(), window("otto")
    call = agent.asks("elsewhere.example.com")
    card_about(mine, "elsewhere.example.com")
    height = card_about(mine, "elsewhere.example.com").bounding_box()["height"]
    reject(others, "elsewhere.example.com")
    decided = mine.locator("article.card.is-decided", has_text="elsewhere.example.com")
    decided.wait_for()
    assert "rejected by otto" in decided.inner_text()
    assert decided.locator("form").count() == 0
    assert abs(decided.bounding_box()["height"] - height) < 2, "what is below it stays where it is"
    text_of(call)


def test_a_withdrawn_ask_greys_out(window: Window, agent: Agent) -> None:
    page = window()
    call = agent.asks("withdrawn.example.com")
    card = card_about(page, "withdrawn.example.com")
    agent.says("withdraw-proposal", proposal_id=card.get_attribute("data-id"))
    page.locator("article.card.is-decided", has_text="withdrawn by bottle docs-bot").wait_for()
    text_of(call)


def test_what_others_change_meanwhile_is_shown_before_it_can_be_approved(
    window: Window, agent: Agent
) -> None:
    mine, others = window(), window("otto")
    first = agent.asks("shared.example.com", path_allowlist=["/one"])
    panel = open_panel(card_about(mine, "shared.example.com"), "Approve")
    second = agent.asks("shared.example.com", path_allowlist=["/two"])
    card_about(others, "shared.example.com")
    other = others.locator("article.card", has_text="under /two")
    if not other.count():
        others.get_by_role("button", name="new: show").click()
    open_panel(other, "Approve").get_by_role("button", name="Approve as asked").click()
    assert "Approved" in said(others)
    notice = mine.locator("#sheet .newer")
    notice.wait_for()
    assert panel.is_visible(), "the half-made decision is not taken away"
    panel.get_by_role("button", name="Approve as asked").click()
    problem = mine.locator("#sheet .problem[role=alert]")
    problem.wait_for()
    assert "Nothing was decided." in problem.inner_text() and "/two" in problem.inner_text()
    panel = mine.locator("#sheet .panel-approve[open]")
    panel.get_by_role("button", name="Approve as asked").click()
    assert "Approved: shared.example.com" in said(mine), "seen again, it can be approved"
    assert text_of(first).startswith("status: approved") and text_of(second).startswith("status: approved")


def test_one_key_never_approves(window: Window, agent: Agent) -> None:
    page = window()
    call = agent.asks("keys.example.com")
    card_about(page, "keys.example.com").focus()
    page.keyboard.press("a")
    panel = page.locator("#sheet .panel-approve[open]")
    panel.wait_for(state="attached")
    page.keyboard.press("Enter")
    assert panel.locator("textarea").input_value() == "\n", "the note has the focus"
    assert call.poll() is None
    page.keyboard.press("Control+Enter")
    assert "Approved: keys.example.com" in said(page)
    assert text_of(call).startswith("status: approved")


def test_everything_works_without_script(window: Window, agent: Agent) -> None:
    verbs = ("approve", "modify", "reject", "snooze")
    calls = {verb: agent.asks(f"{verb}.noscript.example.com") for verb in verbs}
    page = window(java_script_enabled=False)
    for verb in calls:  # nothing arrives by itself: wait for the agents, then reload
        wait_for_card(page, f"{verb}.noscript.example.com")
    assert "reload it to see new proposals" in page.content()
    open_panel(card_about(page, "approve.noscript"), "Approve").get_by_role("button").click()
    assert "→ live v" in said(page)
    panel = open_panel(card_about(page, "modify.noscript"), "Modify")
    panel.get_by_label("only these, and what").check()
    panel.locator("textarea[name=paths]").fill("/only/this")
    panel.get_by_role("button", name="Preview").click()
    assert "under /only/this" in page.locator(".preview").inner_text()
    page.get_by_role("button", name="Approve with these changes").click()
    assert "Modified" in said(page)
    reject(page, "reject.noscript")
    open_panel(card_about(page, "snooze.noscript"), "Snooze").get_by_role("button", name="1 hour").click()
    assert "Put aside" in said(page)
    page.locator("select[name=show]").select_option("snoozed")
    page.get_by_role("button", name="Filter").click()
    reject(page, "snooze.noscript")
    for verb, status in {"approve": "approved", "modify": "modified", "reject": "rejected"}.items():
        assert text_of(calls[verb]).startswith(f"status: {status}")
    text_of(calls["snooze"])
    page.get_by_role("link", name="History", exact=True).click()
    assert "modify.noscript.example.com" in page.content()


def wait_for_card(page: Any, host: str) -> None:
    for _ in range(100):
        if page.locator("h2", has_text=host).count():
            return
        page.wait_for_timeout(100)
        page.reload()
    raise AssertionError(f"no card about {host}")


HOSTILE = (
    "\u202eevil\u202c <script>document.title='owned'</script><img src=x onerror=alert(1)> </pre>\x1b[31m "
)


def test_hostile_text_does_nothing_and_is_readable(window: Window, agent: Agent) -> None:
    page = window()
    call = agent.asks("hostile.example.com", justification=HOSTILE + "x" * 900_000)
    card = card_about(page, "hostile.example.com")
    assert "⟦U+202E⟧evil⟦U+202C⟧ <script>" in card.inner_text()
    card.get_by_role("link", name="hostile.example.com").click()
    page.locator("#sheet .agent-text summary").click()
    shown = page.locator("#sheet pre.hostile").inner_text()
    assert "⟦U+202E⟧evil⟦U+202C⟧ <script>document.title='owned'</script>" in shown
    assert "⟦U+001B⟧[31m" in shown
    assert "owned" not in page.title()
    assert page.locator("article img, article script").count() == 0
    page.keyboard.press("Escape")
    reject(page, "hostile.example.com")
    text_of(call)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it(window: Window, agent: Agent, scheme: str) -> None:
    page = window(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    host = f"phone-{scheme}-with-a-rather-long-name-that-has-to-wrap.some-department.example.com"
    call = agent.asks(host, path_allowlist=["/" + "very-long-" * 20], justification="w" * 500)
    card = card_about(page, host)
    for path in ("/", f"/proposals/{card.get_attribute('data-id')}/", "/history/"):
        page.goto(page.url.split("/", 3)[0] + "//" + page.url.split("/")[2] + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    page.goto(page.url.replace("/history/", "/"))
    button = card_about(page, host).get_by_text("Reject…")
    box = button.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["height"] >= 36
    reject(page, host)
    text_of(call)


def luminance(page: Any, selector: str, css_property: str) -> float:
    colour = page.locator(selector).first.evaluate(
        f"e => getComputedStyle(e).getPropertyValue('{css_property}')"
    )
    red, green, blue = (int(part) for part in colour.strip("rgba()").split(",")[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_dark_is_dark_and_light_is_light(window: Window, agent: Agent) -> None:
    call = agent.asks("colours.example.com")
    for scheme, is_dark in (("light", False), ("dark", True)):
        page = window(color_scheme=scheme)
        wait_for_card(page, "colours.example.com")
        page.goto(page.url.rstrip("/") + card_about(page, "colours.example.com").get_attribute("data-link"))
        for selector in (".decide", ".badge-medium", "pre.hostile", ".diff-added td"):
            paper, ink = (luminance(page, selector, name) for name in ("background-color", "color"))
            assert (paper < ink) is is_dark, selector
            assert abs(paper - ink) > 90, f"{selector} is hard to read in {scheme}"
    page.goto(page.url.split("/proposals/")[0])
    reject(page, "colours.example.com")
    text_of(call)


def web_worker(island: Island) -> int:
    children = ["pgrep", "-P", str(island.server.process.pid)]
    return int(subprocess.run(children, capture_output=True, check=True).stdout.split()[0])


def test_a_server_that_says_nothing_makes_the_page_stale(window: Window, island: Island) -> None:
    page = window()
    page.clock.install()
    page.reload()
    page.wait_for_selector("#connection[data-state=connected]")
    worker = web_worker(island)
    os.kill(worker, signal.SIGSTOP)
    try:
        page.clock.fast_forward(60_000)
        page.wait_for_selector("#connection[data-state=stale]")
    finally:
        os.kill(worker, signal.SIGCONT)
    page.wait_for_selector("#connection[data-state=connected]", timeout=60_000)


def test_it_reconnects_and_catches_up(window: Window, agent: Agent, island: Island) -> None:
    page = window()
    os.kill(web_worker(island), signal.SIGTERM)
    page.wait_for_selector("#connection[data-state=disconnected]")
    page.wait_for_selector("#connection[data-state=connected]", timeout=60_000)
    call = agent.asks("afterwards.example.com")
    card_about(page, "afterwards.example.com")
    reject(page, "afterwards.example.com")
    text_of(call)


def test_who_is_signed_out_is_told(window: Window, agent: Agent) -> None:
    page = window()
    page.context.clear_cookies()
    call = agent.asks("signed-out.example.com")
    page.wait_for_selector("#connection[data-state=signed-out]")
    assert page.locator("h2", has_text="signed-out.example.com").count() == 0
    other = window()
    wait_for_card(other, "signed-out.example.com")
    reject(other, "signed-out.example.com")
    text_of(call)


ADMIN_PAGES = [
    "", "password_change/", "auth/user/", "auth/user/add/", "auth/user/1/change/", "auth/group/add/",
    "botbottle/bottle/", "egress/publication/", "egress/routetableversion/", "supervise/apikey/",
    "supervise/auditevent/", "supervise/decision/", "supervise/proposal/",
]  # fmt: skip


def test_the_admin_works_under_the_same_policy(window: Window, island: Island) -> None:
    page = window()
    for path in ADMIN_PAGES:
        answer = page.goto(f"{island.server.console_url}/admin/{path}")
        assert answer.status == 200, path
    page.locator("#result_list tbody th a").first.click()
    page.wait_for_selector("pre.hostile")
