"""Attempts to use up what all bottles share: time, connections and memory."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.attack.conftest import Allowed, check_invariants
from tests.attack.test_identity import credentials
from tests.support.proxy_harness import (
    TOKENS,
    Client,
    Harness,
    connect,
    eventually,
    get,
    request,
    running_lab,
)

pytestmark = pytest.mark.process
MOST = 20


with_two_processes_too = pytest.mark.parametrize("small", ["1", "2"], indirect=True)
also_with_two_processes = pytest.mark.parametrize("roomless", ["1", "2"], indirect=True)


@pytest.fixture(scope="module", params=["1"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A data plane with little patience and little room, for what has to come to an end."""
    limits = {
        "EGRESS_HEAD_SECONDS": "0.5",
        "EGRESS_HANDSHAKE_SECONDS": "2",  # ours has to be done by then, on a busy machine too
        "EGRESS_KEEP_ALIVE_SECONDS": "1",
        "EGRESS_RESPONSE_SECONDS": "1",
        "EGRESS_IDLE_SECONDS": "1",
        "EGRESS_TUNNEL_IDLE_SECONDS": "1",
        "EGRESS_MAX_CONNECTIONS": str(MOST),
        "EGRESS_PROCESSES": request.param,
    }
    home: Path = tmp_path_factory.mktemp("small") / "h"
    with running_lab(home, **limits) as lab:
        yield lab


@pytest.fixture(scope="module", params=["1"])
def roomless(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """One with little room alone, for what has to stay meanwhile, however long that takes here."""
    limits = {"EGRESS_MAX_CONNECTIONS": str(MOST), "EGRESS_PROCESSES": request.param}
    home: Path = tmp_path_factory.mktemp("roomless") / "h"
    with running_lab(home, EGRESS_HANDSHAKE_SECONDS="1", **limits) as lab:
        yield lab


@pytest.fixture
def lab(small: Harness, allowed: Allowed) -> Iterator[Harness]:
    yield small
    check_afterwards(small, allowed)


@pytest.fixture
def patient(roomless: Harness, allowed: Allowed) -> Iterator[Harness]:
    yield roomless
    check_afterwards(roomless, allowed)


def check_afterwards(lab: Harness, allowed: Allowed) -> None:
    check_invariants(lab, allowed)
    lab.reset()
    eventually(lambda: lab.control("GET", "/status")["bottles"]["agent-a"]["connections"] == 0, "quiet")
    assert "Traceback" not in lab.log(), lab.log()  # nor from how they ended


def test_a_head_that_drips_in_is_ended_however_it_is_dripped(lab: Harness) -> None:
    """Each byte comes in time; all of them together would take half a minute."""
    client = lab.client()
    with pytest.raises(OSError):
        for byte in get("http://api.example.com/allowed", "api.example.com", "X: " + "y" * 500):
            client.send(bytes([byte]))
            client.socket.settimeout(0.05)  # the pace; what has to end it is the proxy
            try:
                received = client.socket.recv(1000)
            except TimeoutError:
                continue
            assert received.startswith(b"HTTP/1.1 408")
            raise ConnectionError
    assert lab.requests == []


@with_two_processes_too
def test_silent_connections_are_closed(lab: Harness) -> None:
    clients = [lab.client() for _ in range(MOST // 2)]
    assert [client.everything() for client in clients] == [b""] * len(clients)


def test_a_connection_that_does_not_say_whose_it_is_is_not_kept_for_long(attacked: Harness) -> None:
    assert attacked.tcp_client().everything() == b""  # one with a name would be kept for more than a minute


def test_silent_strangers_make_room_for_who_comes_after_them(tmp_path: Path, allowed: Allowed) -> None:
    with running_lab(
        tmp_path / "h", EGRESS_MAX_CONNECTIONS="5", EGRESS_PROCESSES="1"
    ) as lab:  # each has its own
        strangers = [lab.tcp_client() for _ in range(10)]
        assert [client.everything() for client in strangers[:5]] == [b""] * 5
        assert lab.control("GET", "/status")["strangers"] == 5
        header = credentials("agent-a", TOKENS["agent-a"])
        message = get("http://api.example.com/allowed", "api.example.com", header)
        known = [lab.tcp_client() for _ in range(4)]
        assert [client.ask(message).status for client in known] == [200] * 4
        check_invariants(lab, allowed)


@pytest.mark.parametrize("host", ["bare.example.com", "api.example.com"])
def test_a_handshake_that_does_not_come_is_not_waited_for(lab: Harness, host: str) -> None:
    client = lab.client()
    assert client.ask(connect(host)).status == 200
    assert len(client.everything()) <= 7


def test_a_body_that_stops_is_not_waited_for(lab: Harness) -> None:
    client = lab.secured("api.example.com")
    client.send(request("POST", "/allowed", "api.example.com", "Content-Length: 10", body=b"abc"))
    assert client.answer().status == 408
    assert not any(seen.whole for seen in lab.requests)


def test_an_origin_that_does_not_answer_is_not_waited_for(lab: Harness, allowed: Allowed) -> None:
    allowed["api.example.com"] += ("/silent",)
    lab.publish("agent-b", [{"host": "api.example.com", "pinned_addresses": ["127.0.0.2"]}])
    answer = lab.client("agent-b").ask(get("http://api.example.com/silent", "api.example.com"))
    assert (answer.status, answer.reason) == (504, "upstream-timeout")


@with_two_processes_too
def test_a_client_that_does_not_read_is_cut(lab: Harness) -> None:
    client = lab.secured("api.example.com")
    client.send(get("/big/100000000", "api.example.com"))
    flows = lambda: lab.control("GET", "/status")["bottles"]["agent-a"]["flows"]  # noqa: E731
    eventually(lambda: flows() == 1, "the download")
    eventually(lambda: flows() == 0, "its end")
    assert "idle" in ends(lab, "/big/100000000")


def test_hints_are_held_back_for_a_client_that_does_not_read(lab: Harness, allowed: Allowed) -> None:
    allowed["api.example.com"] += ("/many-hints",)
    lab.publish("agent-b", [{"host": "api.example.com", "pinned_addresses": ["127.0.0.2"]}])
    lab.client("agent-b").send(get("http://api.example.com/many-hints/30", "api.example.com"))
    assert ends(lab, "/many-hints/30") == ["upstream-timeout"]


def test_a_silent_tunnel_is_closed(lab: Harness) -> None:
    client = lab.secured("bare.example.com")
    with pytest.raises((ConnectionError, ssl.SSLError)):
        client.take(1)
    assert ends(lab, "") == ["idle"]


def ends(lab: Harness, path: str) -> list[str]:
    """By what reason the requests for this path ended."""

    def found() -> list[str]:
        known = [
            record for record in lab.records() if (record["path"], record["verdict"]) == (path, "allowed")
        ]
        return [record["reason"] for record in known]

    return list(eventually(found, "the end of the request"))


@also_with_two_processes
def test_a_bottle_has_a_limit_of_connections_and_others_do_not_feel_it(patient: Harness) -> None:
    held = [patient.client() for _ in range(MOST)]
    for client in held:
        client.send(b"GET ")
    answer = patient.client().ask(get("http://api.example.com/allowed", "api.example.com"))
    assert (answer.status, answer.reason) == (503, "too-many-connections")
    assert patient.client("agent-b").ask(get("http://_egress.local/health", "_egress.local")).status == 200
    for client in held:
        client.close()
    eventually(lambda: _is_served(patient), "room for a new connection")


def test_connections_beyond_the_limit_are_not_held_either(patient: Harness) -> None:
    def open_ones() -> int:
        return int(patient.control("GET", "/status")["connections"])

    held = [patient.client() for _ in range(MOST)]
    for client in held:
        client.send(b"GET ")
    # They are told so, if anything, and given time to read it.
    too_many = [patient.client() for _ in range(100)]
    assert open_ones() < MOST + 20
    for client in (*held, *too_many):
        client.close()
    eventually(lambda: _is_served(patient), "room for a new connection")


@with_two_processes_too
def test_requests_without_end_and_without_reading_are_held_back(lab: Harness) -> None:
    client = lab.client()
    message = get("http://_egress.local/allowlist", "_egress.local") * 100
    client.socket.settimeout(1)
    with pytest.raises(OSError):
        for _ in range(10_000):
            client.send(message)


@with_two_processes_too
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "TLS"])
def test_connections_that_are_closed_but_not_read_count_and_come_to_an_end(
    lab: Harness, secured: bool
) -> None:
    """Or a bottle could have any number of them, each with its answers in our memory."""
    start = "" if secured else "http://_egress.local"
    host = "api.example.com" if secured else "_egress.local"
    path = "/nothing-allows-this" if secured else "/allowlist"
    message = get(start + path, host) * 3000 + get(start + path, host, "Connection: close")
    clients = [lab.secured(host) if secured else lab.client() for _ in range(MOST // 2)]
    for client in clients:
        client.socket.settimeout(0.1)
        with suppress(OSError):
            client.send(message)
        assert _uncounted(lab) < 6
    eventually(lambda: _count(lab) == 0 and _uncounted(lab) <= lab.processes, "their end")


def test_unread_answers_do_not_keep_a_connection_whose_handshake_failed(patient: Harness) -> None:
    client, refused = patient.client(), 230  # more than the kernel takes, less than what we would wait for
    client.send(get("http://nowhere.example.com/", "nowhere.example.com") * refused)
    eventually(lambda: _records(patient, "nowhere.example.com") >= refused, "the refusals")
    client.send(connect("api.example.com"))
    eventually(lambda: patient.records()[-1]["reason"] == "bad-tls", "the end of our patience")
    client.close()
    eventually(lambda: _count(patient) == 0, "its end")


def test_requests_that_are_sent_ahead_do_not_keep_another_bottle_waiting(patient: Harness) -> None:
    """All of it is there when the proxy wakes up; who has asked for one thing is not served last."""
    clients = [patient.client() for _ in range(3)]
    others = [patient.client("agent-b"), patient.client("agent-b")]
    message = request("HEAD", "http://_egress.local/health", "_egress.local")
    with patient.held("agent-a"):
        # One before and one after: it is not for us to say who is looked at first.
        others[0].send(get("http://_egress.local/allowlist", "_egress.local"))
        for client in clients:
            client.send(message * 800)
        others[1].send(get("http://_egress.local/allowlist", "_egress.local"))
    assert [other.answer().status for other in others] == [200, 200]
    for client in clients:
        for _ in range(800):
            client.answer(to=b"HEAD")
    served = [each["path"] for each in patient.records() if each["path"] in ("/health", "/allowlist")]
    assert served[-1200:] == ["/health"] * 1200


def test_long_heads_that_arrive_together_do_not_keep_another_bottle_waiting(patient: Harness) -> None:
    clients = [patient.client() for _ in range(MOST - 2)]
    others = [patient.client("agent-b"), patient.client("agent-b")]
    message = get("http://_egress.local/health", "_egress.local", "X-Long: " + "%25%34%31" * 600)
    for _ in range(10):  # in which order they are looked at is up to chance
        with patient.held("agent-a"):
            others[0].send(get("http://_egress.local/allowlist", "_egress.local"))
            for client in clients:
                client.send(message)
            others[1].send(get("http://_egress.local/allowlist", "_egress.local"))
        assert {other.answer().status for other in others + clients} == {200}
        served = [each["path"] for each in patient.records() if each["path"] in ("/health", "/allowlist")]
        assert served[-MOST // 2 :] == ["/health"] * (MOST // 2)


LONGEST = "".join(f"X-{number}: {'a ' * 600}\r\n" for number in range(50)).encode()  # 60 KB, and slow to read
START = b"GET http://_egress.local/health HTTP/1.1\r\nHost: _egress.local\r\n"


@pytest.mark.parametrize("end", [b"\r\n", b" folded\r\n\r\n"], ids=["well-formed", "malformed"])
@pytest.mark.parametrize("way", ["socket", "TCP"])
def test_the_longest_heads_are_not_even_read_before_their_turn(
    patient: Harness, way: str, end: bytes
) -> None:
    """When one is read its record begins."""
    clients = [patient.client() if way == "socket" else patient.tcp_client() for _ in range(MOST - 2)]
    others, message = [patient.client("agent-b"), patient.client("agent-b")], START + LONGEST + end
    for client in clients:
        client.send(message[:1])
    assert [other.ask(START + b"\r\n").status for other in others] == [200, 200]
    eventually(lambda: _count(patient) + patient.control("GET", "/status")["strangers"] == MOST - 2, "all")
    before = len(patient.records())
    with patient.held("agent-a"):
        others[0].send(get("http://_egress.local/allowlist", "_egress.local"))
        for client in clients:
            client.send(message[1:])
        others[1].send(get("http://_egress.local/allowlist", "_egress.local"))
    assert {other.answer().status for other in others} == {200}
    assert {client.answer().status for client in clients} <= {200, 400, 407}
    patient.reset()
    eventually(lambda: len(patient.records()) == before + MOST, "their records")
    records = patient.records()[before:]
    short = [each for each in records if each["path"] == "/allowlist"]
    answered = max(each["at"] + each["duration_ms"] / 1000 for each in short)
    assert sum(each["at"] > answered for each in records) >= MOST // 2


def _uncounted(lab: Harness) -> int:
    """Open connections that are no bottle's: those that ask for the status, now and a moment ago."""
    status = lab.control("GET", "/status")
    of_bottles = sum(each["connections"] + each["pooled"] for each in status["bottles"].values())
    return int(status["connections"]) - of_bottles


def _count(lab: Harness) -> int:
    return int(lab.control("GET", "/status")["bottles"]["agent-a"]["connections"])


def _records(lab: Harness, host: str) -> int:
    return sum(each["host"] == host for each in lab.records())


def _is_served(lab: Harness) -> bool:
    client: Client = lab.client()
    try:
        return client.ask(get("http://api.example.com/allowed", "api.example.com")).status == 200
    except ConnectionError:
        return False
