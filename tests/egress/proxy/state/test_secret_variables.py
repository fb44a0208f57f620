"""What a bottle was handed as secret variables does not leave: real process, files as a start writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from botbottle.backends import secret_variables
from egress.dlp.scanner import Scanner
from tests.egress.proxy.request.test_dlp_traffic import AS, DISGUISES
from tests.support.proxy_harness import SECRET, Answer, Harness, connect, eventually, get, pinned, request

pytestmark = pytest.mark.process
MINE = "plain/words that-match+no=shape"
HOST, OTHER = "api.example.com", "other.example.com"
ROUTES = [
    pinned(HOST, methods=["GET", "POST"]),
    pinned(OTHER, methods=["GET", "POST"], dlp={"out": False}),
    pinned("secret.example.com", auth={"scheme": "Bearer", "token_ref": "CANARY"}),
    pinned("bare.example.com", dlp={"out": False, "in": True}),
]
Hand = Callable[..., None]


@pytest.fixture
def run(lab: Harness) -> Iterator[Path]:
    lab.publish("agent-a", ROUTES)
    run = lab.home / "bottles" / "agent-a" / "run"
    yield run
    secret_variables.forget(run)
    noted = lab.log() + json.dumps(lab.records())
    assert Scanner([MINE]).literals.first(noted.encode()) is None


@pytest.fixture
def hand(run: Path) -> Hand:
    return lambda *values: secret_variables.add(
        run, {f"V{number}": value for number, value in enumerate(values)}
    )


def post(body: str, host: str = HOST, *headers: str) -> bytes:
    raw = body.encode()
    return request("POST", "/in", host, f"Content-Length: {len(raw)}", *headers, body=raw)


def found(answer: Answer) -> tuple[int, str, Any, Any]:
    return answer.status, answer.reason, answer.json.get("kind"), answer.json.get("where")


@AS
def test_it_does_not_leave_in_a_body(lab: Harness, hand: Hand, disguise: str) -> None:
    hand(MINE)
    answer = lab.secured(HOST).ask(post(f"note={DISGUISES[disguise](MINE)}"))
    assert found(answer) == (403, "dlp", "provisioned-secret", "body")
    assert lab.requests == []


@AS
def test_it_does_not_leave_in_a_url_or_a_header(lab: Harness, hand: Hand, disguise: str) -> None:
    hand(MINE)
    coded = DISGUISES[disguise](MINE).replace(" ", "%20")
    assert found(lab.secured(HOST).ask(get(f"/in?q={coded}", HOST)))[1:] == (
        "dlp",
        "provisioned-secret",
        "url",
    )
    answer = lab.secured(HOST).ask(get("/in", HOST, f"X-Mine: {coded}"))
    assert found(answer)[1:] == ("dlp", "provisioned-secret", "header")
    assert lab.requests == []


def test_the_refusal_says_what_to_do_and_repeats_nothing(lab: Harness, hand: Hand) -> None:
    hand(MINE)
    said = lab.secured(HOST).ask(post(MINE)).json["message"]
    assert "its body holds what looks like a secret (provisioned-secret). Take it out" in said
    assert said.endswith("leaves only where an operator has switched the search off.")
    assert MINE not in said and "V0" not in said


def test_an_operator_can_let_it_out_on_one_route(lab: Harness, hand: Hand) -> None:
    hand(MINE)
    assert lab.secured(OTHER).ask(post(MINE, OTHER)).status == 200
    assert [seen.body for seen in lab.requests] == [MINE.encode()]


def test_a_path_with_it_is_concealed_where_nothing_is_searched(lab: Harness, hand: Hand) -> None:
    hand(MINE)
    before = len(lab.records())
    client = lab.secured(OTHER)
    for _ in range(3):  # also on the fast path
        assert client.ask(get(f"/in/{MINE.replace(' ', '%20')}", OTHER)).status == 200
    client.close()
    records = eventually(lambda: len(lab.records()) >= before + 3 and lab.records()[before:], "the records")
    assert {record["path"] for record in records if record["method"] == "GET"} == {"(concealed)"}


def test_other_bottles_may_say_the_same_words(lab: Harness, hand: Hand) -> None:
    hand(MINE)
    lab.publish("agent-b", [pinned(OTHER, methods=["POST"])])
    assert lab.secured(OTHER, slug="agent-b").ask(post(MINE, OTHER)).status == 200


def test_it_is_known_at_once_on_an_open_connection_and_forgotten_at_once(
    lab: Harness, run: Path, hand: Hand
) -> None:
    """Also on the fast path."""
    client = lab.secured(HOST)
    message = get(f"/in?q={MINE.replace(' ', '%20')}", HOST)
    for _ in range(3):
        assert client.ask(message).status == 200
    for number in range(10):
        hand(MINE)
        assert client.ask(message).reason == "dlp", number
        secret_variables.forget(run)
        eventually(lambda: client.ask(message).status == 200, "the end of the search")
    hand(MINE)
    assert {client.ask(message).reason for _ in range(20)} == {"dlp"}
    secret_variables.forget(run)
    eventually(lambda: client.ask(message).status == 200, "the end of the search")


def test_a_restarted_proxy_knows_it(lab: Harness, hand: Hand) -> None:
    hand(MINE)
    lab.restart(kill=True)
    assert lab.secured(HOST).ask(post(MINE)).reason == "dlp"


def test_it_can_be_what_the_proxy_adds_too(lab: Harness, hand: Hand) -> None:
    """The agent's own credential is taken out and the same one added; anywhere else it does not leave."""
    hand(SECRET)
    host = "secret.example.com"
    client = lab.secured(host)
    assert client.ask(get("/in", host, f"Authorization: Bearer {SECRET}")).status == 200
    assert [seen.values("authorization") for seen in lab.requests] == [[f"Bearer {SECRET}"]]
    assert client.ask(get("/in", host, f"X-Mine: {SECRET}")).reason == "dlp"


@pytest.mark.parametrize(("host", "comes_back"), [(OTHER, True), ("bare.example.com", False)])
def test_answers_are_changed_only_where_they_are_searched(
    lab: Harness, hand: Hand, host: str, comes_back: bool
) -> None:
    hand(MINE)
    answer = lab.secured(host).ask(post(MINE, host))
    assert answer.status == 200
    assert (MINE.encode() in answer.body) is comes_back


@pytest.mark.parametrize("content", [b"{}", b"[", b""])
def test_what_cannot_be_read_stops_all_that_is_to_be_searched(
    lab: Harness, run: Path, content: bytes
) -> None:
    client = lab.secured(HOST)
    assert client.ask(get("/in", HOST)).status == 200
    run.mkdir(exist_ok=True)
    (run / "secret_variables.json").write_bytes(content)
    eventually(lambda: client.ask(get("/in", HOST)).reason == "dlp-unreadable", "the refusal")
    answer = lab.secured(HOST).ask(get("/in/some-path", HOST))
    assert (answer.status, answer.json["path"]) == (403, "(concealed)")
    assert "Tell the operator" in answer.json["message"]
    assert lab.secured(OTHER).ask(get("/in", OTHER)).status == 200, "nothing is searched there"
    for host in (HOST, OTHER, "new.example.org"):
        told = lab.client().ask(get(f"http://_egress.local/why?url=https://{host}/in/x", "_egress.local"))
        assert told.json["path"] == "(concealed)" and b"/in/x" not in told.body
        assert told.json["allowed"] is (host == OTHER)
    url = f"http://new.example.org/{MINE.replace(' ', '%20')}"  # which the record may not hold either
    nowhere = lab.client().ask(get(url, "new.example.org"))
    assert (nowhere.reason, nowhere.json["path"], "ask" in nowhere.json) == (
        "dlp-unreadable",
        "(concealed)",
        False,
    )
    problems = lab.control("GET", "/status")["bottles"]["agent-a"]["credential_problems"]
    assert problems == [
        "The secrets that were handed to the bottle cannot be read from run/secret_variables.json: it is not"
        " what a start writes."
    ]
    secret_variables.forget(run)
    eventually(lambda: client.ask(get("/in", HOST)).status == 200, "the end of it")
    assert lab.control("GET", "/status")["bottles"]["agent-a"]["credential_problems"] == []


def test_names_that_the_bottle_chose_are_not_noted_while_it_cannot_be_read(lab: Harness, run: Path) -> None:
    lab.publish("agent-a", [{**pinned("*.example.org"), "pinned_addresses": ["127.0.0.2"]}])
    run.mkdir(exist_ok=True)
    (run / "secret_variables.json").write_bytes(b"[")
    said = eventually(
        lambda: (answer := lab.client().ask(connect("mine.example.org"))).status == 403 and answer,
        "a refusal",
    )
    assert said.reason == "dlp-unreadable"
    before = len(lab.records())
    lab.client().ask(get("http://mine.example.com/", "mine.example.com"))
    records = eventually(lambda: lab.records()[before:], "the record")
    assert {(record["host"], record["path"]) for record in records} == {("(concealed)", "(concealed)")}
