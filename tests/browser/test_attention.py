"""Calling an operator, in Chromium: title, icon, notification, sound, webhooks, links that open the card."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.browser.conftest import Asked, Window, sign_in
from tests.support import ROOT
from tests.support.console_page import Agent, fits, fits_every_look, reject, text_of, until
from tests.support.isolated_browser import Island
from tests.support.server import stop
from tests.support.server_shell import Errands
from tests.support.timeouts import wait_until
from tests.support.viewports import (
    Viewport,
    on_the_desk,
    with_script_and_plain_phone,
    with_script_and_without,
)

pytestmark = [pytest.mark.browser, pytest.mark.process]
HOOK_PORT, SECRET = 8200, "a-secret-of-ours-0001"
STAND_INS = """() => {
  window.told = []; window.sounds = 0;
  window.Notification = class { static permission = "granted";
    static async requestPermission() { return "granted"; }
    constructor(title, options) { told.push([title, options.body]); } addEventListener() {} };
  const oscillate = AudioContext.prototype.createOscillator;
  AudioContext.prototype.createOscillator = function () { window.sounds += 1; return oscillate.call(this); };
  Object.defineProperty(document, "hidden", { get: () => false, configurable: true }); }"""

HIDE = "Object.defineProperty(document, 'hidden', { get: () => true, configurable: true })"
SHOW = """() => { Object.defineProperty(document, "hidden", { get: () => false, configurable: true });
  document.dispatchEvent(new Event("visibilitychange")); }"""


@on_the_desk
def test_a_page_that_nobody_sees_counts_and_asks_for_its_state_when_it_is_seen_again(
    window: Window, agent: Agent, look: Viewport
) -> None:
    page = window(look=look, is_fresh=True)
    page.clock.install()
    page.reload()
    page.wait_for_selector("#connection[data-state=connected]")
    page.clock.pause_at(datetime.now(UTC) + timedelta(seconds=10))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(HIDE)
    call = agent.asks("unseen.example.com")
    wait_until(lambda: page.title().startswith("(1) "), what="the count in the title")
    page.clock.run_for(5000)  # less than the time between two looks that need no event
    assert asked == []
    page.clock.resume()
    page.evaluate(SHOW)
    reject(page, "unseen.example.com")
    text_of(call)


@on_the_desk
def test_title_and_icon_count_and_notification_and_sound_come_to_who_wants_them(
    window: Window, agent: Agent, look: Viewport
) -> None:
    page = window(look=look, permissions=["notifications"])
    page.evaluate(STAND_INS)
    assert not page.title().startswith("("), "nothing waits"
    plain = page.locator("link[rel=icon]").get_attribute("href")
    for name in ("notify", "sound"):
        assert page.locator(f"#{name}").get_attribute("aria-pressed") == "false", (
            "off until somebody wants it"
        )
        page.click(f"#{name}")
        page.locator(f"#{name}[aria-pressed=true]").wait_for()
    before = page.evaluate("sounds")
    page.evaluate(HIDE)
    call = agent.asks("evil-words.example.com", justification="evil words")
    wait_until(lambda: page.title().startswith("(1) "), what="the count in the title")
    assert page.locator("link[rel=icon]").get_attribute("href").startswith("data:image/png")
    told = page.evaluate("told")
    assert len(told) == 1 and re.fullmatch(r"1 proposal waits(, \d+ of high risk)?", told[0][1])
    assert page.evaluate("sounds") == before + 1
    page.evaluate(SHOW)
    reject(page, "evil-words.example.com")
    wait_until(lambda: not page.title().startswith("("), what="the title without a count")
    assert page.locator("link[rel=icon]").get_attribute("href") == plain
    text_of(call)


@with_script_and_plain_phone
def test_a_link_to_a_card_survives_the_sign_in(
    browser: Any, island: Island, asked: Asked, errands: Errands, look: Viewport
) -> None:
    slug = f"link-{look}"
    asked(slug, 1, "deep")
    found = (
        "from supervise.models import Proposal; answer = Proposal.objects.get(bottle__slug=given['slug']).pk"
    )
    address = f"{island.server.console_url}/proposals/{errands.run(found, slug=slug)}/?open=reject"
    context = browser.new_context(**look.options)
    page = context.new_page()
    page.goto(address)
    assert fits(page)
    sign_in(page, island)
    page.wait_for_url(address)
    assert page.locator(".panel-reject[open]").count() == 1
    context.close()


@with_script_and_without
def test_a_wrong_password_is_told(browser: Any, island: Island, script: Viewport) -> None:
    context = browser.new_context(**script.options)
    page = context.new_page()
    page.goto(island.server.console_url)
    page.fill("#id_username", "operator")
    page.fill("#id_password", "not the password")
    page.click("input[type=submit]")
    assert "do not sign in here" in page.locator(".errornote").inner_text()
    fits_every_look(page)
    context.close()


@pytest.fixture(scope="module")
def receiver(island: Island) -> Iterator[Any]:
    process = subprocess.Popen(
        island.inside(sys.executable, "-m", "tests.support.programs.webhook_receiver", str(HOOK_PORT)),
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout and process.stdout.readline() == "ready\n"
        yield process.stdout
    finally:
        stop(process)
        if process.stdout:
            process.stdout.close()


@pytest.fixture(autouse=True)
def no_webhook_stays(errands: Errands) -> Iterator[None]:
    yield
    errands.run("from supervise.models import Webhook; Webhook.objects.all().delete()")


@with_script_and_plain_phone
def test_a_webhook_is_set_up_in_the_admin_and_its_deliveries_are_on_record(
    window: Window, agent: Agent, island: Island, receiver: Any, look: Viewport
) -> None:
    page = window(look=look)
    page.get_by_role("link", name="Admin", exact=True).click()
    page.get_by_role("link", name="Webhooks", exact=True).click()
    page.get_by_role("link", name="Add webhook").click()
    page.get_by_label("Name").fill(f"chat {look}")
    page.get_by_label("URL").fill("http://chat.example.com/hooks/1")
    page.get_by_label("a proposal was filed", exact=True).check()
    page.get_by_label("Secret").fill(SECRET)
    page.get_by_role("button", name="Save", exact=True).click()
    assert "Use https" in page.locator(".errorlist").first.inner_text()
    page.get_by_label("URL").fill(f"http://127.0.0.1:{HOOK_PORT}/hooks/1")
    page.get_by_label("Secret").fill(SECRET)
    assert fits(page)
    page.get_by_role("button", name="Save", exact=True).click()
    assert "was added successfully" in page.locator(".messagelist").inner_text()
    call = agent.asks("hooked.example.com", justification="secret words of an agent")
    message = json.loads(receiver.readline())
    told = json.loads(message["body"])
    assert (told["event"], told["bottle"], told["host"]) == ("filed", agent.slug, "hooked.example.com")
    assert "secret words" not in message["body"]
    signed = hmac.new(SECRET.encode(), signed_part(message), hashlib.sha256).hexdigest()
    assert message["headers"]["X-Bot-Bottle-Signature"] == f"sha256={signed}"
    page.goto(f"{island.server.console_url}/admin/supervise/delivery/")
    line = until(page, page.locator("#result_list tbody tr", has_text="Delivered"))
    assert f"chat {look}" in line.inner_text() and "200" in line.inner_text()
    line.get_by_role("link").first.click()
    assert "hooked.example.com" in page.locator("pre.hostile").inner_text()
    page.goto(told["url"])
    assert page.locator("article.detail h2").inner_text() == "hooked.example.com", "the link opens the card"
    page.goto(island.server.console_url)
    reject(page, "hooked.example.com")
    text_of(call)


def signed_part(message: dict[str, Any]) -> bytes:
    return f"{message['headers']['X-Bot-Bottle-Timestamp']}.{message['body']}".encode()
