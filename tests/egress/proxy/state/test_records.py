"""What records say of a request: who refused it or whether it failed, how it ended, how much was carried."""

from __future__ import annotations

import base64
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from egress.proxy.state.records import BATCH
from egress.tables.proxy_client import EgressProcess, ProxyDown, RecordBatch
from tests.support.origins import big
from tests.support.proxy_harness import (
    Answer,
    Client,
    Harness,
    connect,
    eventually,
    get,
    pinned,
    request,
    running_lab,
)
from tests.support.timeouts import PATIENCE

pytestmark = pytest.mark.process
HOST = "api.example.com"
ELSEWHERE = "resolved.example.net"
SIZE = 3_000_000
ENDLESS = 300_000_000
TOKEN = b"ghp_" + b"a1B2" * 9
NARROW = {"methods": ["GET", "POST"]}  # so that it is inspected
ROUTES: dict[str, dict[str, Any]] = {
    "plain": pinned(HOST, **NARROW),
    "inspected": pinned(HOST, **NARROW),
    "searched": pinned(HOST, **NARROW, dlp={"in": True}),  # nothing goes from one TLS to the other
}


class Noted:
    """The records of requests that a test made: those of earlier ones may come late."""

    def __init__(self, lab: Harness) -> None:
        self._lab = lab
        self._since = time.time()

    def all(self) -> list[dict[str, Any]]:
        return [record for record in self._lab.records() if record["at"] >= self._since]

    def one(self) -> dict[str, Any]:
        [record] = eventually(self.all, "its record")
        return dict(record)

    def outcome(self) -> tuple[str, str]:
        record = self.one()
        return record["verdict"], record["reason"]


@pytest.fixture
def noted(lab: Harness) -> Noted:
    return Noted(lab)


class Way:
    """How a bottle sends its requests."""

    def __init__(self, lab: Harness, name: str, host: str = HOST) -> None:
        self.client = lab.client() if name == "plain" else lab.secured(host)
        self._start = f"http://{host}" if name == "plain" else ""
        self._host = host

    def get(self, path: str) -> bytes:
        return get(f"{self._start}{path}", self._host)

    def post(self, path: str, *headers: str, body: bytes) -> bytes:
        return request("POST", f"{self._start}{path}", self._host, *headers, body=body)


@pytest.fixture(params=ROUTES)
def way(lab: Harness, request: pytest.FixtureRequest) -> Way:
    lab.publish("agent-a", [ROUTES[request.param]])
    return Way(lab, request.param)


# --- who refused it

# By reason: the verdict, where the route leads, and what the name service says.
FAR: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "forbidden-address": ("refused", {}, {ELSEWHERE: ["127.0.0.3"]}),
    "unresolvable": ("allowed", {}, {}),
    "upstream-refused": ("allowed", {"pinned_addresses": ["127.0.0.99"]}, {}),
}


def ask_far(lab: Harness, way: str, route: dict[str, Any]) -> Answer:
    """For a host that cannot be reached."""
    if way == "tunnel":
        lab.publish("agent-a", [route])
        return lab.client().ask(connect(ELSEWHERE))
    lab.publish("agent-a", [{**route, **NARROW}])
    there = Way(lab, way, ELSEWHERE)
    return there.client.ask(there.get("/x"))


@pytest.mark.parametrize("way", ["plain", "inspected", "tunnel"])
@pytest.mark.parametrize("reason", FAR)
def test_the_verdict_is_the_same_on_every_way(lab: Harness, noted: Noted, reason: str, way: str) -> None:
    verdict, route, names = FAR[reason]
    lab.names(**names)
    assert ask_far(lab, way, {"host": ELSEWHERE, **route}).reason == reason
    assert noted.outcome() == (verdict, reason)
    assert "ask" not in noted.one()


# By reason: the verdict, the path, and a body with the header that says where it ends.
NEAR: dict[str, tuple[str, str, str, bytes]] = {
    "bad-body": ("refused", "/x", "Transfer-Encoding: chunked", b"zz\r\n"),
    "dlp": ("refused", "/x", f"Content-Length: {len(TOKEN)}", TOKEN),
    "upstream-closed": ("allowed", "/no-answer", "Content-Length: 1", b"x"),
    "bad-answer": ("allowed", "/two-lengths", "Content-Length: 1", b"x"),
}


@pytest.mark.parametrize("reason", NEAR)
def test_what_we_stop_is_refused_and_what_the_origin_gets_wrong_is_not(
    way: Way, noted: Noted, reason: str
) -> None:
    verdict, path, header, body = NEAR[reason]
    assert way.client.ask(way.post(path, header, body=body)).reason == reason
    assert noted.outcome() == (verdict, reason)


# --- how it ended


def test_an_answer_that_ends_too_early_is_not_ok(way: Way, noted: Noted) -> None:
    way.client.send(way.get(f"/half/{SIZE}"))
    way.client.everything()
    assert noted.outcome() == ("allowed", "upstream-closed")
    assert (noted.one()["status"], noted.one()["bytes_in"]) == (200, SIZE // 2)


def test_what_a_revoke_ends_is_cut(lab: Harness, way: Way, noted: Noted) -> None:
    way.client.send(way.get(f"/big/{ENDLESS}"))
    way.client.take(SIZE)
    lab.publish("agent-a", [])
    way.client.everything()
    assert noted.outcome() == ("allowed", "cut")
    assert SIZE // 2 < noted.one()["bytes_in"] < ENDLESS


def test_what_a_revoke_ends_before_the_answer_is_cut_too(lab: Harness, way: Way, noted: Noted) -> None:
    way.client.send(way.get("/silent"))
    eventually(lambda: lab.requests, "the request")
    lab.publish("agent-a", [])
    assert way.client.everything() == b""
    assert noted.outcome() == ("allowed", "cut")


def test_a_client_that_leaves_is_gone(way: Way, noted: Noted) -> None:
    way.client.send(way.get(f"/big/{ENDLESS}"))
    way.client.take(SIZE)
    way.client.close()
    assert noted.outcome() == ("allowed", "gone")
    assert noted.one()["bytes_in"] < ENDLESS


def test_a_usual_request_that_is_cut_says_so(lab: Harness) -> None:
    """The fast path served it."""
    lab.publish("agent-a", [ROUTES["inspected"]])
    way = Way(lab, "inspected")
    assert way.client.ask(way.get("/first")).status == 200
    lab.origins.forget()
    noted = Noted(lab)
    way.client.send(way.get("/silent"))
    eventually(lambda: lab.requests, "the request")
    lab.publish("agent-a", [])
    assert way.client.everything() == b""
    assert noted.outcome() == ("allowed", "cut")


def test_a_websocket_that_is_cut_says_so(lab: Harness, way: Way, noted: Noted) -> None:
    key = base64.b64encode(bytes(16)).decode()
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {key}")
    first = way.get("/websocket").removesuffix(b"\r\n")
    message = first + "\r\n".join([*upgrade, "Sec-WebSocket-Version: 13", "", ""]).encode()
    assert way.client.ask(message).status == 101
    lab.publish("agent-a", [])
    way.client.everything()
    assert noted.outcome() == ("allowed", "cut")


def test_a_tunnel_that_is_cut_says_so(lab: Harness, noted: Noted) -> None:
    client = lab.secured("bare.example.com")
    client.send(get(f"/big/{ENDLESS}", "bare.example.com"))
    client.take(SIZE)
    lab.publish("agent-a", [])
    client.everything()
    assert noted.outcome() == ("allowed", "cut")


# --- how much was carried


def test_an_upload_is_counted_to_the_byte(way: Way, noted: Noted) -> None:
    body = b"x" * SIZE
    answer = way.client.ask(way.post("/x", f"Content-Length: {SIZE}", body=body))
    assert answer.status == 200 and answer.json["body"] == body.decode()
    assert (noted.one()["bytes_out"], noted.one()["bytes_in"]) == (SIZE, len(answer.body))


def test_chunks_are_counted_without_their_frames(way: Way, noted: Noted) -> None:
    sent = b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    assert (
        way.client.ask(way.post("/chunked", "Transfer-Encoding: chunked", body=sent)).body == b"hello world"
    )
    assert (noted.one()["bytes_out"], noted.one()["bytes_in"]) == (7, 11)


def test_a_download_is_counted_to_the_byte(way: Way, noted: Noted) -> None:
    assert way.client.ask(way.get(f"/big/{SIZE}")).body == b"".join(big(SIZE))
    assert (noted.one()["bytes_out"], noted.one()["bytes_in"]) == (0, SIZE)


def test_the_short_way_counts_the_same(lab: Harness) -> None:
    lab.publish("agent-a", [ROUTES["inspected"]])
    way = Way(lab, "inspected")
    assert way.client.ask(way.get("/big/1000")).status == 200
    lab.origins.forget()
    noted = Noted(lab)
    assert len(way.client.ask(way.get("/big/1000")).body) == 1000
    assert lab.origins.connections == []  # a kept one served it
    assert (noted.one()["bytes_out"], noted.one()["bytes_in"]) == (0, 1000)


def hello(name: str) -> bytes:
    """The first bytes of a TLS client."""
    sent = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return sent.read()


@pytest.fixture
def tunnel(lab: Harness) -> Iterator[Callable[[], tuple[Client, Client]]]:
    """Both ends of one, where whatever follows the first bytes is nobody's business."""
    name, ends = "raw.example.com", []

    def opened() -> tuple[Client, Client]:
        lab.publish("agent-a", [{"host": name, "pinned_addresses": ["127.0.0.12"]}])
        with socket.create_server(("127.0.0.12", lab.origins.tls_port)) as listening:
            listening.settimeout(PATIENCE)
            client = lab.client()
            assert client.ask(connect(name)).status == 200
            ends.append(origin := Client(listening.accept()[0]))
        client.send(first := hello(name))
        assert origin.take(len(first)) == first
        return client, origin

    yield opened
    for end in ends:
        end.close()


@pytest.mark.parametrize("size", [1000, SIZE])  # the larger one moves within the kernel
def test_a_tunnel_is_counted_to_the_byte(
    tunnel: Callable[[], tuple[Client, Client]], noted: Noted, size: int
) -> None:
    client, origin = tunnel()
    begun = len(origin.received)
    for one, other in ((client, origin), (origin, client)):
        for block in big(size):
            one.send(block)
            assert other.take(len(block)) == block
    client.close()
    assert origin.everything() == b""
    origin.close()
    assert noted.outcome() == ("allowed", "ok")
    assert (noted.one()["bytes_out"], noted.one()["bytes_in"]) == (begun + size, size)


# --- when the process stops


class Reader:
    """As the control plane reads, until nobody answers any more."""

    def __init__(self, lab: Harness) -> None:
        self._process = EgressProcess(lab.home / "run" / "egress.sock")
        self._boot, self._number = "", 0
        self._thread = threading.Thread(target=self._read_on, daemon=True)
        self.records: list[dict[str, Any]] = []
        self.lost = 0
        self.read()

    def read(self, *, wait: float = 0) -> None:
        with closing(
            self._process.ask_for_records(boot=self._boot, after=self._number, wait=wait)
        ) as question:
            batch = RecordBatch.of(question.answer())
        self._boot, self._number = batch.boot, batch.next
        self.records += batch.records
        self.lost += batch.dropped

    def _read_on(self) -> None:
        try:
            while True:
                self.read(wait=5)
        except ProxyDown:
            pass

    def read_to_the_end_of(self, lab: Harness) -> list[dict[str, Any]]:
        """While it stops."""
        self._thread.start()
        assert lab.process.wait(20) == 0
        self._thread.join(20)
        return self.records


def begin_to_stop(lab: Harness) -> None:
    lab.process.send_signal(signal.SIGTERM)
    eventually(lambda: "stopping" in lab.log(), "the stop")


def test_what_is_unread_at_a_stop_is_read_to_the_last(tmp_path: Path) -> None:
    many = 2 * BATCH + 1
    with running_lab(tmp_path / "h", EGRESS_PROCESSES="1") as lab:
        reader, way = Reader(lab), Way(lab, "plain")
        for number in range(many):
            assert way.client.ask(way.get(f"/forbidden/{number}")).reason == "path"
        lab.process.send_signal(signal.SIGTERM)
        paths = [record["path"] for record in reader.read_to_the_end_of(lab)]
        assert (paths, reader.lost) == ([f"/forbidden/{number}" for number in range(many)], 0)


def test_what_ends_while_it_stops_is_read_too(tmp_path: Path) -> None:
    with running_lab(tmp_path / "h", EGRESS_PROCESSES="1") as lab:
        lab.publish("agent-a", [ROUTES["plain"]])
        reader, uploads = Reader(lab), [Way(lab, "plain") for _ in range(3)]
        for number, way in enumerate(uploads):
            way.client.send(way.post(f"/{number}", "Content-Length: 4", body=b"ab"))
        eventually(lambda: _flows(lab) == len(uploads), "the uploads")
        begin_to_stop(lab)
        for number, way in enumerate(uploads):
            way.client.send(b"cd")
            assert way.client.answer().json["body"] == "abcd"
            if number == 0:
                reader.read(wait=5)
        ends = [(record["path"], record["reason"]) for record in reader.read_to_the_end_of(lab)]
        assert ends == [("/0", "ok"), ("/1", "ok"), ("/2", "ok")]


def test_what_a_stop_cuts_is_noted(tmp_path: Path) -> None:
    """On the fast path, in a tunnel, and where no connection to the origin is open yet."""
    with running_lab(tmp_path / "h", EGRESS_PROCESSES="1", EGRESS_STOP_SECONDS="0.1") as lab:
        slow = {"host": "slow.example.com", "pinned_addresses": ["127.0.0.12"], **NARROW}
        lab.publish("agent-a", [ROUTES["inspected"], pinned("bare.example.com"), slow])
        way, tunnel = Way(lab, "inspected"), lab.secured("bare.example.com")
        assert way.client.ask(way.get("/first")).status == 200
        reader = Reader(lab)
        reader.records.clear()
        way.client.send(way.get("/silent"))
        tunnel.send(get("/silent", "bare.example.com"))
        with socket.create_server(("127.0.0.12", lab.origins.tls_port)) as listening:
            listening.settimeout(PATIENCE)
            lab.secured("slow.example.com").send(get("/slow", "slow.example.com"))
            connection, _ = listening.accept()
            eventually(lambda: _flows(lab) == 3, "all of them")
            begin_to_stop(lab)
            ends = [(record["path"], record["reason"]) for record in reader.read_to_the_end_of(lab)]
            connection.close()
        assert sorted(ends) == [("", "cut"), ("/silent", "cut"), ("/slow", "cut")]


def test_nothing_becomes_live_while_it_stops(tmp_path: Path) -> None:
    with running_lab(tmp_path / "h", EGRESS_PROCESSES="1") as lab:
        lab.publish("agent-a", [ROUTES["plain"]])
        way, process = Way(lab, "plain"), EgressProcess(lab.home / "run" / "egress.sock")
        way.client.send(way.post("/x", "Content-Length: 4", body=b"ab"))
        eventually(lambda: _flows(lab) == 1, "the upload")
        begin_to_stop(lab)
        assert process.status()["stopping"]
        for question in (process.reload, process.routes):
            with pytest.raises(ProxyDown):
                question("agent-a")
        way.client.send(b"cd")
        assert way.client.answer().status == 200
        assert lab.process.wait(20) == 0
        assert not (lab.home / "run" / "egress.sock").exists()


def _flows(lab: Harness) -> int:
    return int(lab.control("GET", "/status")["bottles"]["agent-a"]["flows"])
