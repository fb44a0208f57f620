"""Several egress processes share the bottles: agent-a is with the first of two, agent-b with the second."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from egress.contract.sharding import owner
from tests.attack.test_identity import credentials
from tests.support import ROOT
from tests.support.proxy_harness import (
    TOKENS,
    USUAL_ROUTES,
    Client,
    Harness,
    connect,
    eventually,
    get,
    nobody_listens,
    numbered,
    pinned,
    request,
    running_lab,
)
from tests.support.server import is_running
from tests.support.timeouts import PATIENCE

pytestmark = pytest.mark.process
HOSTS = {"agent-a": "api.example.com", "agent-b": "other.example.com"}
NUMBERS = {slug: owner(slug, 2) for slug in TOKENS}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with running_lab(tmp_path_factory.mktemp("several") / "h", EGRESS_PROCESSES="2") as lab:
        yield lab


@pytest.fixture
def lab(shared: Harness) -> Iterator[Harness]:
    shared.publish("agent-a", USUAL_ROUTES)
    shared.publish("agent-b", [pinned("other.example.com", path_allowlist=["/allowed"])])
    shared.reset()
    yield shared
    shared.reset()
    assert shared.process.poll() is None, shared.log()
    assert "Traceback" not in shared.log(), shared.log()


def processes(lab: Harness) -> dict[int, int]:
    return numbered(lab.process.pid)


def signed(message: bytes, slug: str, token: str | None = None) -> bytes:
    header = credentials(slug, TOKENS[slug] if token is None else token).encode()
    return message.replace(b"\r\n\r\n", b"\r\n" + header + b"\r\n\r\n", 1)


def ask(slug: str, path: str = "/allowed", *headers: str) -> bytes:
    host = HOSTS[slug]
    return signed(get(f"http://{host}{path}", host, *headers), slug)


def handed_over(lab: Harness, slug: str, message: bytes) -> Client:
    """A connection that the other process accepted, with all of this sent to it."""
    other = next(each for each in TOKENS if each != slug)
    with lab.held(slug):
        client = lab.tcp_client()
        client.send(message)
        # Connections are accepted in turn: when this one is answered, the one before it has been read.
        for _ in range(3):
            assert lab.tcp_client().ask(ask(other)).status == 200
    return client


# --- who serves whom


def test_each_process_has_its_own_bottles(lab: Harness) -> None:
    found = [set(lab.control_of(number, "GET", "/status")["bottles"]) for number in (0, 1)]
    assert found[NUMBERS["agent-a"]] == {"agent-a"} and found[NUMBERS["agent-b"]] == {"agent-b"}
    for slug, host in HOSTS.items():
        assert lab.client(slug).ask(get(f"http://{host}/allowed", host)).status == 200
        assert lab.secured(host, slug=slug).ask(get("/allowed", host)).status == 200


def test_over_tcp_every_bottle_is_served_by_its_own_process(lab: Harness) -> None:
    for number in range(20):
        for slug in TOKENS:
            assert lab.tcp_client().ask(ask(slug, f"/allowed/{number}")).status == 200
    for slug, number in NUMBERS.items():
        served = [record for record in lab._records_of(number) if record["path"].startswith("/allowed/")]
        assert [record["bottle"] for record in served] == [slug] * 20


@pytest.mark.parametrize("slug", sorted(TOKENS))
def test_a_connection_that_the_other_process_accepted_is_handed_over(lab: Harness, slug: str) -> None:
    client = handed_over(lab, slug, ask(slug))
    assert client.answer().status == 200
    assert client.ask(ask(slug)).status == 200, "and it is kept"


@pytest.mark.parametrize("slug", sorted(TOKENS))
def test_tls_begins_where_it_would_have_begun(lab: Harness, slug: str) -> None:
    client = handed_over(lab, slug, signed(connect(HOSTS[slug]), slug))
    assert client.answer(to=b"CONNECT").status == 200
    assert lab.wrap(client, HOSTS[slug], slug=slug).ask(get("/allowed", HOSTS[slug])).status == 200


def test_what_was_sent_along_with_the_first_head_is_handed_over_too(lab: Harness) -> None:
    both = handed_over(lab, "agent-a", ask("agent-a", "/allowed/1") + ask("agent-a", "/allowed/2"))
    assert [both.answer().status, both.answer().status] == [200, 200]
    body = os.urandom(400_000)
    message = request(
        "POST", "http://api.example.com/allowed", "api.example.com", f"Content-Length: {len(body)}"
    )
    assert handed_over(lab, "agent-a", signed(message, "agent-a") + body).answer().status == 200
    assert [seen.target for seen in lab.requests if seen.origin == "api.example.com"][:2] == [
        "/allowed/1",
        "/allowed/2",
    ]
    assert lab.requests[-1].body == body


def test_a_hello_right_behind_connect_is_refused_as_ever(lab: Harness) -> None:
    """It could be meant for another host: here the bytes must not get lost, or they would not be seen."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="api.example.com")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outgoing.read()
    client = handed_over(lab, "agent-a", signed(connect("api.example.com"), "agent-a") + hello)
    answer = client.answer(to=b"CONNECT")
    assert (answer.status, answer.reason) == (400, "early-data")


# --- who it is


@pytest.mark.parametrize("token", ["", "wrong", TOKENS["agent-b"]])
def test_the_process_that_takes_it_checks_the_token(lab: Harness, token: str) -> None:
    message = signed(get("http://api.example.com/allowed", "api.example.com"), "agent-a", token)
    assert handed_over(lab, "agent-a", message).answer().status == 407
    assert [seen for seen in lab.requests if seen.origin == "api.example.com"] == []


@pytest.mark.parametrize("slug", ["nobody", "nobody-1", "nobody-2", "NOBODY", "../agent-a", "", "-"])
def test_a_name_that_no_bottle_has_is_refused_by_whoever_hears_it(lab: Harness, slug: str) -> None:
    message = signed(get("http://api.example.com/allowed", "api.example.com"), slug, "token-of-a")
    assert [lab.tcp_client().ask(message).status for _ in range(4)] == [407] * 4


def test_a_connection_stays_with_the_bottle_it_began_with(lab: Harness) -> None:
    for first, second in (("agent-a", "agent-b"), ("agent-b", "agent-a")):
        for client in (lab.tcp_client(), lab.tcp_client(), handed_over(lab, first, b"")):
            assert client.ask(ask(first)).status == 200
            assert client.ask(ask(second, "/allowed/second")).status == 407
    assert not [seen for seen in lab.requests if seen.target == "/allowed/second"]


# --- tables


def test_an_ack_comes_from_the_bottles_own_process_only(lab: Harness) -> None:
    for slug, number in NUMBERS.items():
        assert lab.control_of(number, "POST", f"/reload/{slug}")["bottle"] == slug
        told = lab.control_of(1 - number, "POST", f"/reload/{slug}")
        assert told == {"error": "Another process serves this bottle."}
        assert slug not in lab.control_of(1 - number, "GET", "/status")["bottles"]


def test_sighup_has_every_process_read_its_tables_again(lab: Harness) -> None:
    versions = {slug: lab.write(slug, []) for slug in TOKENS}
    lab.process.send_signal(signal.SIGHUP)
    for slug, version in versions.items():
        eventually(
            lambda slug=slug, version=version: (
                lab.control("GET", "/status")["bottles"][slug]["version"] == version
            ),
            "the reload",
        )


def test_the_gates_file_has_the_hosts_of_all(tmp_path: Path) -> None:
    with (
        nobody_listens() as gate,
        running_lab(
            tmp_path / "h", EGRESS_PROCESSES="2", EGRESS_UPSTREAM_PROXY=f"http://127.0.0.1:{gate}"
        ) as lab,
    ):

        def hosts() -> set[str]:
            return set(yaml.safe_load((lab.home / "run" / "pipelock.yaml").read_text())["api_allowlist"])

        usual = {str(route["host"]) for route in USUAL_ROUTES}
        assert hosts() == usual | {"other.example.com"}
        lab.publish("agent-b", [])
        assert hosts() == usual
        lab.publish("agent-a", [pinned("api.example.com")])
        lab.publish("agent-b", [pinned("bare.example.com")])
        assert hosts() == {"api.example.com", "bare.example.com"}
        lab.restart(kill=True)
        assert hosts() == {"api.example.com", "bare.example.com"}


# --- coming and going


def test_a_killed_process_comes_back_and_the_others_never_notice(lab: Harness) -> None:
    before = processes(lab)
    kept, lost = lab.tcp_client(), lab.tcp_client()
    assert kept.ask(ask("agent-b")).status == 200 and lost.ask(ask("agent-a")).status == 200
    os.kill(before[NUMBERS["agent-a"]], signal.SIGKILL)
    assert lost.everything() == b""
    assert kept.ask(ask("agent-b")).status == 200
    assert all(lab.tcp_client().ask(ask("agent-b")).status == 200 for _ in range(5))
    assert lab.tcp_client().ask(ask("agent-a")).status == 200, "who comes meanwhile waits for it"
    after = processes(lab)
    assert after[NUMBERS["agent-b"]] == before[NUMBERS["agent-b"]]
    assert after[NUMBERS["agent-a"]] != before[NUMBERS["agent-a"]]
    assert kept.ask(ask("agent-b")).status == 200
    assert lab.client("agent-a").ask(get("http://api.example.com/allowed", "api.example.com")).status == 200


def test_when_too_many_wait_for_a_process_the_others_are_told_so(tmp_path: Path) -> None:
    with running_lab(tmp_path / "h", EGRESS_PROCESSES="2", EGRESS_CONNECT_SECONDS="0.5") as lab:
        with lab.held("agent-a"):
            waiting = [lab.tcp_client() for _ in range(40)]
            for client in waiting:
                client.send(ask("agent-a", "/allowed", "X-Long: " + "x" * 15_000))
            told = waiting.pop().answer()
            assert (told.status, told.reason) == (503, "restarting")
        statuses = [client.answer().status for client in waiting]
        assert set(statuses) == {200, 503}, "who waited in its queue is served"


def test_a_stop_lets_requests_of_all_finish_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with running_lab(tmp_path / "h", EGRESS_PROCESSES="2") as lab:
        for slug, host in HOSTS.items():
            lab.publish(slug, [pinned(host, dlp={"out": False})])
        children, port = processes(lab).values(), lab.tcp_client().socket.getpeername()[1]
        idle, busy = lab.client(), []
        for slug, host in HOSTS.items():
            busy.append(lab.tcp_client())
            message = request("POST", f"http://{host}/p", host, "Content-Length: 4")
            busy[-1].send(signed(message, slug) + b"ab")
        eventually(lambda: len(lab.requests) == 2, "the requests")
        lab.process.send_signal(signal.SIGTERM)
        assert idle.everything() == b""
        eventually(lambda: refuses(port), "the end of the port")
        for client in busy:
            client.send(b"cd")
            assert client.answer().json["body"] == "abcd"
        assert lab.process.wait(20) == 0
        assert not [pid for pid in children if is_running(pid)]
        left = {entry.name for entry in (lab.home / "run").iterdir()}
        assert left == {"egress.lock", "egress-0.stopped", "egress-1.stopped"}  # the stop was a planned one
        assert not list((lab.home / "bottles").glob("*/sockets/*"))


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_with_its_parent_killed_all_end_and_another_can_start(tmp_path: Path) -> None:
    with running_lab(tmp_path / "h", EGRESS_PROCESSES="2") as lab:
        busy = lab.secured("api.example.com")
        busy.send(b"POST /allowed HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 4\r\n\r\nab")
        eventually(lambda: lab.requests, "the request")
        before = set(processes(lab).values())
        lab.restart(kill=True)
        assert not before & set(processes(lab).values())
        assert not [pid for pid in before if is_running(pid)]
        for slug in TOKENS:
            assert lab.tcp_client().ask(ask(slug)).status == 200


def test_a_start_with_fewer_leaves_nothing_of_more_that_were_killed(tmp_path: Path) -> None:
    with running_lab(tmp_path / "h", EGRESS_PROCESSES="3") as lab:
        lab._environment["EGRESS_PROCESSES"] = "1"
        lab.restart(kill=True)
        assert [path.name for path in (lab.home / "run").glob("*.sock")] == ["egress.sock"]
        for slug in TOKENS:
            assert lab.tcp_client().ask(ask(slug)).status == 200


def test_a_bad_setting_is_told_once(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "manage.py", "egress"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE,
        check=False,
        env={
            "BOTTLE_HOME": str(tmp_path), "EGRESS_PORT": "0", "EGRESS_PROCESSES": "3", "PATH": "/usr/bin",
            "EGRESS_UPSTREAM_CA": "/nowhere/ca.pem",
        },
    )  # fmt: skip
    assert finished.returncode == 2
    assert finished.stderr.startswith("bot-bottle: EGRESS_UPSTREAM_CA") and finished.stderr.count("\n") == 1
