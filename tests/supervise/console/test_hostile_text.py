"""Whatever an agent writes, the console's pages stay whole, run nothing of it, and hide nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client

from botbottle.dockerfiles.parse import MOST_INSTRUCTIONS, Instruction, instructions
from botbottle.models import Bottle
from supervise.models import Proposal
from supervise.proposals import decisions
from tests.support.proposals import ask, ask_gate, ask_image, seen

MEGABYTE = 1024 * 1024

# What is written, and what must be readable of it.
HOSTILE = {
    "script": ("<script>alert(1)</script>", "<script>alert(1)</script>"),
    "script in JSON": ('{"a":"</script><script>alert(1)</script>"}', "</script><script>alert(1)</script>"),
    "out of the pre": ("</bdi></pre></article><h1>owned</h1>", "</bdi></pre></article><h1>owned</h1>"),
    "out of the textarea": ("x</textarea><img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>"),
    "template": ("{{ request.user.password }}{% debug %}", "{{ request.user.password }}{% debug %}"),
    "right to left": ("safe \u202etxt.exe", "safe ⟦U+202E⟧txt.exe"),
    "isolates": ("a\u2066b\u2069", "a⟦U+2066⟧b⟦U+2069⟧"),
    "ANSI": ("\x1b[2J\x1b[31mred", "⟦U+001B⟧[2J⟦U+001B⟧[31mred"),
    "NUL": ("a\x00b", "a␀b"),
    "zero width": ("ad\u200bmin\ufeff\u2060", "ad⟦U+200B⟧min⟦U+FEFF⟧⟦U+2060⟧"),
    "tags": ("x\U000e0041\U000e0042", "x⟦U+E0041⟧⟦U+E0042⟧"),
    "line separators": ("a\u2028b\u2029c", "a⟦U+2028⟧b⟦U+2029⟧c"),
    "lone surrogate": ("a\ud800b", "a\ufffdb"),
}
LONG = {
    "one megabyte": ("<b>" + "x" * MEGABYTE, "<b>xxx"),
    "many direction marks": ("\u202e" * (MEGABYTE // 30), "⟦U+202E⟧⟦U+202E⟧"),
}


class Page(HTMLParser):
    """What a browser would make of it: the text people see, and the elements that could do something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.scripts: list[str] = []
        self.handlers: list[str] = []
        self.headings = 0
        self._in_script = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "script":
            self._in_script = True
            self.scripts.append(given.get("src") or "inline")
        self.headings += tag == "h1"
        self.handlers += [name for name in given if name.startswith("on") or name == "style"]
        for name in ("value", "title", "placeholder"):
            self.text += f" {given.get(name) or ''} "

    def handle_endtag(self, tag: str) -> None:
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data: str) -> None:
        if not self._in_script:
            self.text += data


def assert_inert(page: str) -> str:
    """No script but ours, no handlers, one heading, no raw invisible characters outside what is edited."""
    seen_page = Page(page)
    assert seen_page.scripts and all(
        source.startswith(("/static/", "/admin/jsi18n/")) for source in seen_page.scripts
    )
    assert seen_page.handlers == []
    assert seen_page.headings == 1
    for raw in ("\u202e", "\u2066", "\x1b", "\x00", "\u200b", "\u2028", "\U000e0041"):
        assert raw not in page.partition('<textarea name="dockerfile"')[0]
    return seen_page.text


def pages_about(proposal: Proposal) -> list[str]:
    return [
        f"/proposals/{proposal.pk}/",
        f"/admin/supervise/proposal/{proposal.pk}/change/",
    ]


def in_one_line(readable: str) -> str:
    return readable.replace("⟦U+2028⟧", " ").replace("⟦U+2029⟧", " ")


@pytest.mark.parametrize(("written", "readable"), LONG.values(), ids=LONG)
def test_a_long_justification_is_inert_and_readable(
    root: Client, agent_a: Bottle, written: str, readable: str
) -> None:
    proposal = ask(agent_a, why=written)
    assert readable in assert_inert(root.get("/").text)
    assert readable in assert_inert(root.get(f"/proposals/{proposal.pk}/").text)
    assert_inert(root.get("/admin/supervise/proposal/").text)


def test_justifications_are_inert_and_readable(root: Client, agent_a: Bottle) -> None:
    for number, (written, readable) in enumerate(HOSTILE.values()):
        proposal = ask(agent_a, f"h{number}.example.com", why=written)
        for path in pages_about(proposal):
            assert readable in assert_inert(root.get(path).text), path
    queue = assert_inert(root.get("/").text)
    assert [name for name, (_, readable) in HOSTILE.items() if in_one_line(readable) not in queue] == []
    assert_inert(root.get("/admin/supervise/proposal/").text)


def test_dockerfiles_are_inert_and_readable(root: Client, agent_a: Bottle) -> None:
    for text, readable in HOSTILE.values():
        written = text.replace("\x00", "␀").replace("\ud800", "\ufffd")  # the Dockerfile check refuses these
        proposal = ask_image(agent_a, f"FROM debian\nRUN echo {written}\n")
        for path in pages_about(proposal):
            assert readable in assert_inert(root.get(path).text), path
    assert_inert(root.get("/").text)


def test_notes_are_inert_and_readable(root: Client, agent_a: Bottle) -> None:
    operator = User.objects.get(username="root")
    for number, (written, readable) in enumerate(HOSTILE.values()):
        proposal = ask(agent_a, f"h{number}.example.com", why=written)
        note = f"because {written}"
        decision = decisions.reject(proposal.pk, actor=operator, seen_digest=seen(proposal), note=note)
        card = root.get(f"/queue/cards?id={proposal.pk}").text
        assert readable in assert_inert(f'<h1></h1><script src="/static/"></script>{card}')
        for path in (f"/proposals/{proposal.pk}/", f"/admin/supervise/decision/{decision.pk}/change/"):
            assert readable in assert_inert(root.get(path).text), path
    history = assert_inert(root.get("/history/").text)
    assert [name for name, (_, readable) in HOSTILE.items() if in_one_line(readable) not in history] == []
    listed = assert_inert(root.get("/admin/supervise/decision/").text)
    assert [name for name, (_, readable) in HOSTILE.items() if readable not in listed] == []


def test_a_url_at_the_gate_is_inert(root: Client, agent_a: Bottle) -> None:
    proposal = ask_gate(agent_a, "https://gate.example.com/<script>alert(1)</script>?q='\"><img/src=x>")
    for path in pages_about(proposal):
        assert "<script>alert(1)</script>" in assert_inert(root.get(path).text)


def test_a_queue_of_megabytes_stays_small(root: Client, agent_a: Bottle) -> None:
    for number in range(5):
        ask(agent_a, f"h{number}.example.com", why="\u202e" * (MEGABYTE // 3))
    ask_image(agent_a, "FROM debian\nRUN echo " + "x" * MEGABYTE, why="y" * MEGABYTE)
    answer = root.get("/")
    assert len(answer.content) < MEGABYTE // 8


def test_a_card_that_is_looked_at_again_is_not_read_again(
    root: Client, agent_a: Bottle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open pages look every second: what an agent can make them do is to read each Dockerfile once."""
    read = []

    def counted(text: str) -> Iterator[Instruction]:
        for instruction in instructions(text):
            read.append(instruction)
            yield instruction

    Bottle.objects.filter(pk=agent_a.pk).update(dockerfile="FROM debian:12\n")
    agent_a.refresh_from_db()
    monkeypatch.setattr("supervise.kinds.dockerfile_review.instructions", counted)
    asked = [
        ask_image(agent_a, f"FROM debian:12\n# {uuid4()}\n" + "RUN a\n" * (MOST_INSTRUCTIONS - 1))
        for _ in range(3)
    ]
    assert len(read) >= 3 * MOST_INSTRUCTIONS
    read.clear()
    picked = "&".join(f"id={proposal.pk}" for proposal in asked)
    for path in ("/", "/queue/state", f"/queue/cards?{picked}", f"/bulk/?verb=reject&{picked}"):
        assert root.get(path).status_code == 200
        assert read == [], path


def test_hidden_characters_in_an_edited_dockerfile_are_announced(root: Client, agent_a: Bottle) -> None:
    proposal = ask_image(agent_a, "FROM debian\nRUN echo a\u202eb\n")
    assert "contains hidden characters" in root.get(f"/proposals/{proposal.pk}/").text
