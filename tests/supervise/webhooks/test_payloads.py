"""What leaves for receivers: signed, in each one's shape, and nothing in it that a chat would act on."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest

from supervise.webhooks.http import BadReceiver, check_url
from supervise.webhooks.payloads import body_of, headers_of, plain

LINK = "https://console.example.com/proposals/1/"
FILED = {
    "event": "filed", "seq": 7, "at": "2030-01-01T00:00:00+00:00", "bottle": "release-bot", "pending": 3,
    "proposal": "1", "tool": "egress-block", "risk": "high", "host": "*.github.com",
}  # fmt: skip
CASES: list[tuple[dict[str, Any], str]] = [
    (FILED, "High-risk ask: bottle `release-bot` wants `*.github.com` (egress-block). 3 pending."),
    (
        {**FILED, "host": None, "tool": "capability-block"},
        "High-risk ask: bottle `release-bot` wants `container image` (capability-block). 3 pending.",
    ),
    (
        {**FILED, "event": "decided", "decision": "approved", "by": "olivia"},
        "Bottle `release-bot`, `*.github.com`: approved by `olivia`. 3 pending.",
    ),
    (
        {**FILED, "event": "not-live"},
        "Approved but not live: bottle `release-bot`, `*.github.com`. 3 pending.",
    ),
    (
        {"event": "stopped", "bottle": "release-bot", "what": "stopped", "exit_code": 137, "pending": 0},
        "Bottle `release-bot` stopped with exit code 137. 0 pending.",
    ),
    (
        {"event": "stopped", "bottle": "b", "what": "did not start", "exit_code": None, "pending": 0},
        "Bottle `b` did not start. 0 pending.",
    ),
    ({"event": "test", "pending": 0}, "This is a test. 0 pending."),
]


def sent(kind: str, facts: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(body_of(kind, facts, LINK)))


@pytest.mark.parametrize(("facts", "text"), CASES)
def test_a_chat_reads_one_sentence_and_a_link(facts: dict[str, Any], text: str) -> None:
    assert sent("slack", facts)["text"] == f"bot-bottle: {text} <{LINK}|Open>"
    assert sent("discord", facts)["content"] == f"bot-bottle: {text} <{LINK}>"
    matrix = sent("matrix", facts)
    assert matrix["text"] == f"bot-bottle: {text.replace('`', '')} {LINK}"
    assert matrix["html"].endswith(f' <a href="{LINK}">Open</a>')
    assert matrix["html"].count("<code>") == text.count("`") / 2


def test_no_chat_is_asked_to_notify_or_preview_anything() -> None:
    slack, discord = sent("slack", FILED), sent("discord", FILED)
    assert (slack["parse"], slack["link_names"], slack["unfurl_links"]) == ("none", False, False)
    assert (discord["allowed_mentions"], discord["flags"]) == ({"parse": []}, 4)
    assert sent("matrix", FILED)["m.mentions"] == {}


HOSTILE = [
    "<!channel>", "<@U123>", "<https://evil.example|click>", "@everyone", "@here", "`code`", "[a](http://b)",
    "https://evil.example/", "<b>bold</b>", '"><img src=x onerror=alert(1)>', "*a*\n_b_", "&lt;", "||x||",
    "@room", "\u202egnp.exe", "a\x00b", "${x}", "line\r\nbreak", "\\", "é",
]  # fmt: skip
ACTIVE = set("<>@&`[]()|\"'/\\:\n\r$")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_keeps_nothing_active(name: str) -> None:
    assert not set(plain(name)) & ACTIVE
    assert plain(name).isascii()


@pytest.mark.parametrize("kind", ["slack", "discord", "matrix"])
@pytest.mark.parametrize("field", ["host", "by", "bottle"])
def test_a_hostile_name_adds_no_markup_to_a_message(kind: str, field: str) -> None:
    facts = {**FILED, "event": "decided", "decision": "approved", "by": "olivia"}
    tame = sent(kind, {**facts, field: "x"})
    for name in HOSTILE:
        wild = sent(kind, {**facts, field: name})
        for key, text in tame.items():
            if isinstance(text, str):
                assert [c for c in wild[key] if c in ACTIVE] == [c for c in text if c in ACTIVE], name


def test_our_own_json_holds_the_facts_and_one_line_names() -> None:
    body = body_of("generic", {**FILED, "host": "a\u202e\nb"}, LINK)
    assert json.loads(body) == {**FILED, "host": "a⟦U+202E⟧ b", "url": LINK}
    assert body.isascii()


def test_a_receiver_can_check_who_sent_it_and_when() -> None:
    body = body_of("generic", FILED, LINK)
    headers = headers_of(body, secret="s3cret", delivery="9", event="filed", timestamp=1_900_000_000)
    expected = hmac.new(b"s3cret", b"1900000000." + body, hashlib.sha256).hexdigest()
    assert headers["X-Bot-Bottle-Signature"] == f"sha256={expected}"
    assert headers["X-Bot-Bottle-Timestamp"] == "1900000000"
    assert headers["X-Bot-Bottle-Delivery"] == "9"
    other = headers_of(body, secret="s3cret", delivery="9", event="filed", timestamp=1_900_000_001)
    assert other["X-Bot-Bottle-Signature"] != headers["X-Bot-Bottle-Signature"], "old ones cannot be replayed"
    unsigned = headers_of(body, secret="", delivery="9", event="filed", timestamp=1)
    assert "X-Bot-Bottle-Signature" not in unsigned


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.slack.com/services/T/B/x",
        "https://discord.com/api/webhooks/1/x?wait=true",
        "https://[2001:db8::1]:8443/x",
        "http://127.0.0.1:9000/hook",
        "http://localhost/hook",
        "http://[::1]:80/",
    ],
)
def test_a_url_that_messages_may_go_to(url: str) -> None:
    assert check_url(url).hostname


@pytest.mark.parametrize(
    "url",
    [
        "", "x", "ftp://example.com/", "https://", "http://example.com/", "http://10.0.0.1/",
        "http://127.0.0.1.evil.example/", "https://user:pw@example.com/", "https://example.com:x/",
        "https://example.com/#a", "https://example.com/a b", "https://example.com/\r\nX: y",
        "https://exämple.com/", "https://example.com\\@evil.example/", "http://localhost.evil.example/",
        "https://example.com:99999/", "javascript:alert(1)", "file:///etc/passwd",
    ],
)  # fmt: skip
def test_a_url_that_they_may_not(url: str) -> None:
    with pytest.raises(BadReceiver):
        check_url(url)
