"""What one connection has found out about a tool's usual request, the next one need not find out again."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from botbottle.backends import secret_variables
from botbottle.core.files import write_atomically
from egress.contract.snapshot import render_gate, render_routes
from egress.policy.decide import RouteTable, Snapshot
from egress.policy.routes import Route
from egress.proxy.config import Config
from egress.proxy.fast import fast_path
from egress.proxy.fast.head_cache import Answer, CachedRequest, HeadCache
from egress.proxy.http.heads import RequestHead, parse_request
from egress.proxy.net.connection import Connection, Wakeup
from egress.proxy.state.bottle import Bottle
from egress.proxy.state.proxy import Proxy
from tests.support.proxy_harness import Client, Harness, get, pinned, request

HOST, OTHER = "api.example.com", "other.example.com"
TOKEN = "ghp_" + "a1B2" * 9
NOTE = "X-Note: the same each time"


@pytest.fixture
def known(lab: Harness) -> bytes:
    """A request whose fields were learnt on a connection that is gone."""
    lab.publish("agent-a", [pinned(HOST, methods=["GET"]), pinned(OTHER, methods=["GET"])])
    asked = get("/x", HOST, NOTE)
    client = lab.secured(HOST)
    assert [client.ask(asked).status for _ in range(3)] == [200, 200, 200]
    client.close()
    lab.origins.forget()
    return asked


def anew(lab: Harness, asked: bytes, host: str = HOST) -> Client:
    client = lab.secured(host)
    client.send(asked)
    return client


def test_a_new_connection_sends_and_answers_the_same(lab: Harness, known: bytes) -> None:
    for _ in range(3):
        assert anew(lab, known).answer().json["target"] == "/x"
    assert [seen.values("x-note") for seen in lab.requests] == [["the same each time"]] * 3
    assert lab.origins.connections == []  # the kept one served them all
    assert [record["path"] for record in lab.records()[-3:]] == ["/x"] * 3


def test_what_is_known_of_one_host_is_not_true_of_another(lab: Harness, known: bytes) -> None:
    assert anew(lab, known, OTHER).answer().reason == "host-mismatch"
    assert lab.requests == []


def test_a_new_table_counts_for_the_next_connection(lab: Harness, known: bytes) -> None:
    lab.publish("agent-a", [pinned(HOST, path_allowlist=["/elsewhere"])])
    assert anew(lab, known).answer().reason == "path"
    lab.publish("agent-a", [])
    assert anew(lab, known).answer().reason == "no-route"
    assert lab.requests == []


def test_a_secret_handed_meanwhile_is_found_in_known_fields(lab: Harness, known: bytes) -> None:
    run = lab.home / "bottles" / "agent-a" / "run"
    secret_variables.add(run, {"VARIABLE": "the same each time"})
    try:
        assert anew(lab, known).answer().reason == "dlp"
        assert anew(lab, known).answer().reason == "dlp"
    finally:
        secret_variables.forget(run)
    assert lab.requests == []


def test_a_known_answer_to_get_is_none_to_head(lab: Harness) -> None:
    lab.publish("agent-a", [pinned(HOST, methods=["GET", "HEAD"])])
    for method in ("GET", "GET", "HEAD", "HEAD", "GET", "HEAD", "GET"):
        answer = lab.secured(HOST).ask(request(method, "/same-head", HOST))
        assert (answer.headers["content-length"], answer.body) == ("4", b"" if method == "HEAD" else b"here")


def test_a_bottle_of_the_same_name_begins_anew(lab: Harness, known: bytes) -> None:
    files = lab.home / "bottles" / "agent-a"
    identity = (files / "identity.json").read_text()
    for name in ("identity.json", "routes.yaml", "gate.yaml"):
        (files / name).unlink()
    lab.control("POST", "/reload/agent-a")
    (files / "identity.json").write_text(identity)
    lab.publish("agent-a", [pinned(OTHER)])
    assert anew(lab, known).answer().reason == "no-route"
    assert lab.requests == []


def test_another_bottle_has_its_own(lab: Harness, known: bytes) -> None:
    client = lab.secured(HOST, slug="agent-b")
    assert client.ask(known).reason == "no-route"
    assert lab.requests == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [("DELETE /x", "method"), ("GET /x/../y", "bad-path"), (f"GET /x?{TOKEN}", "dlp"), ("GET x", "bad-head")],
)
def test_known_fields_vouch_for_no_line(lab: Harness, known: bytes, line: str, reason: str) -> None:
    assert anew(lab, known).answer().status == 200
    asked = f"{line} HTTP/1.1\r\n".encode() + known.partition(b"\r\n")[2]
    assert anew(lab, asked).answer().reason == reason
    assert len(lab.requests) == 1


def test_what_differs_in_one_byte_is_searched(lab: Harness, known: bytes) -> None:
    assert anew(lab, known.replace(NOTE.encode(), f"X-Note: {TOKEN}".encode())).answer().reason == "dlp"
    assert lab.requests == []


def test_only_the_hosts_that_were_asked_last_are_kept() -> None:
    habits = HeadCache()
    first = habits.of("host-0")
    first.snapshot = Snapshot("agent-a", 1, RouteTable(), "")
    for number in range(1, 64):
        habits.of(f"host-{number}")
    assert habits.of("host-0") is first
    for number in range(64, 127):
        habits.of(f"host-{number}")
    assert habits.of("host-0") is first
    for number in range(200, 264):
        habits.of(f"host-{number}")
    assert habits.of("host-0") is not first


def test_large_heads_are_kept_by_their_own_connection_only() -> None:
    host = HeadCache().of(HOST)
    small = CachedRequest(b"x", cast(Any, None), cast(Any, None), True, ("https", HOST, ()), b"x")
    answer = Answer(b"x", False, 1, 200, 0, True, b"x")
    host.keep_request(small)
    host.keep_answer(answer)
    host.keep_request(replace(small, fields=b"x" * 3000))
    host.keep_answer(replace(answer, raw=b"x" * 3000))
    assert (host.request, host.answer) == (small, answer)


async def test_a_new_connection_reads_no_fields_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bottle, plane = await bottle_and_plane(tmp_path)
    bottle.search = replace(plane.scanners.search(bottle), until=math.inf)  # however busy the machine is
    read: list[bytes] = []

    def counted(raw: bytes, *, max_fields: int) -> RequestHead:
        read.append(raw)
        return parse_request(raw, max_fields=max_fields)

    monkeypatch.setattr(fast_path, "parse_request", counted)
    for asked in (get("/x", HOST), get("/y", HOST), get("/y", HOST, NOTE)):
        lane = fast_path.FastPath(plane, bottle, Connection(Wakeup(), plane.watch), HOST)
        assert not lane.take(asked), "there is no connection to send it on"
    assert read == [get("/x", HOST), get("/y", HOST, NOTE)]
    assert bottle.habits.of(HOST).request is not None
    bottle.search = None  # as when secrets have to be looked up again
    plane.scanners.search(bottle)
    assert bottle.habits.of(HOST).request is None, "what it held on to is let go"


async def bottle_and_plane(home: Path) -> tuple[Bottle, Proxy]:
    files = home / "bottles" / "agent-a"
    files.mkdir(parents=True)
    route = Route(HOST, methods=("GET",))
    snapshot = Snapshot("agent-a", 1, RouteTable((route,), (HOST,)), datetime.now(UTC).isoformat())
    write_atomically(files / "gate.yaml", render_gate(snapshot))
    write_atomically(files / "routes.yaml", render_routes(snapshot))
    plane = Proxy(Config(home))
    bottle, _ = await plane.load("agent-a")
    return bottle, plane
