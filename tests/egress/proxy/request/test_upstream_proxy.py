"""All traffic through a proxy of the operator's own, such as pipelock."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.proxy_harness import (
    ADDRESSES,
    Harness,
    connect,
    eventually,
    get,
    nobody_listens,
    pinned,
    running_lab,
)

pytestmark = pytest.mark.process
ROUTES = [
    {"host": "bare.example.com"},
    {"host": "api.example.com", "path_allowlist": ["/allowed"]},
    {"host": "blocked.example.com", "path_allowlist": ["/allowed"]},
    {"host": "secretive.example.com"},
    pinned("other.example.com"),
]


class OperatorsProxy:
    """Opens CONNECT tunnels to the test origins, refuses some, and keeps the heads it was sent."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.tls_port = 0  # of the origins
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(65536)
        self.heads.append(head)
        method, target = head.split(b" ")[:2]
        host = target.decode().partition(":")[0]
        if method != b"CONNECT":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        elif host not in ADDRESSES:
            reason = "not in allowlist" if host.startswith("blocked") else "secret in the\x00 hostname"
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\n\r\n")
            connection.sendall(f"CONNECT blocked: {reason}".encode())
        else:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            with socket.create_connection((ADDRESSES[host], self.tls_port)) as origin:
                back = threading.Thread(target=_pump, args=[origin, connection], daemon=True)
                back.start()
                _pump(connection, origin)
                back.join(20)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Harness, OperatorsProxy]]:
    proxy = OperatorsProxy()
    home: Path = tmp_path_factory.mktemp("gateway") / "h"
    with running_lab(home, EGRESS_UPSTREAM_PROXY=f"http://127.0.0.1:{proxy.port}") as lab:
        proxy.tls_port = lab.origins.tls_port
        lab.publish("agent-a", ROUTES)
        yield lab, proxy
    proxy.close()


@pytest.fixture
def lab(labs: tuple[Harness, OperatorsProxy]) -> Iterator[Harness]:
    yield labs[0]
    assert labs[0].asked_names() == []
    assert "Traceback" not in labs[0].log()
    labs[0].reset()


@pytest.fixture
def proxy(labs: tuple[Harness, OperatorsProxy]) -> OperatorsProxy:
    labs[1].heads.clear()
    return labs[1]


def test_a_tunnel_goes_through_it(lab: Harness, proxy: OperatorsProxy) -> None:
    assert lab.secured("bare.example.com").ask(get("/x", "bare.example.com")).status == 200
    assert proxy.heads == [connect("bare.example.com")]


def test_an_inspected_request_goes_through_it(lab: Harness, proxy: OperatorsProxy) -> None:
    assert lab.secured("api.example.com").ask(get("/allowed", "api.example.com")).status == 200
    assert proxy.heads == [connect("api.example.com")]
    assert lab.requests[0].tls


def test_a_plain_request_is_handed_over_whole(lab: Harness, proxy: OperatorsProxy) -> None:
    answer = lab.client().ask(get("http://api.example.com/allowed?x=1", "api.example.com"))
    assert answer.body == b"ok"
    assert proxy.heads[0].startswith(
        b"GET http://api.example.com/allowed?x=1 HTTP/1.1\r\nHost: api.example.com\r\n"
    )


def test_a_pinned_host_is_reached_directly(lab: Harness, proxy: OperatorsProxy) -> None:
    assert lab.secured("other.example.com").ask(get("/x", "other.example.com")).status == 200
    assert proxy.heads == []


def test_what_we_refuse_never_gets_to_it(lab: Harness, proxy: OperatorsProxy) -> None:
    assert lab.secured("api.example.com").ask(get("/forbidden", "api.example.com")).status == 403
    assert lab.client().ask(get("http://denied.example.org/", "denied.example.org")).status == 403
    assert proxy.heads == []


def test_its_allowlist_refusal_points_to_the_tool(lab: Harness, proxy: OperatorsProxy) -> None:
    answer = lab.secured("blocked.example.com").ask(get("/allowed", "blocked.example.com"))
    assert (answer.status, answer.reason) == (403, "gate")
    assert answer.json["ask"]["tool"] == "pipelock-block"
    assert "CONNECT blocked: not in allowlist" in answer.json["message"]
    record = lab.records()[-1]
    assert (record["verdict"], record["reason"], record["ask"]) == ("refused", "gate", answer.json["ask"])


def test_another_refusal_of_it_points_nowhere(lab: Harness, proxy: OperatorsProxy) -> None:
    answer = lab.client().ask(connect("secretive.example.com"))
    assert (answer.status, "ask" in answer.json) == (403, False)
    assert "secret in the hostname" in answer.json["message"]
    record = lab.records()[-1]
    assert (record["verdict"], record["reason"], "ask" in record) == ("refused", "gate", False)


def test_its_configuration_follows_the_gate(lab: Harness) -> None:
    path = lab.home / "run" / "pipelock.yaml"
    hosts = yaml.safe_load(path.read_text())["api_allowlist"]
    assert hosts == sorted(str(route["host"]) for route in ROUTES)
    lab.publish("agent-a", [*ROUTES, {"host": "*.example.net"}])
    config = yaml.safe_load(path.read_text())
    assert "*.example.net" in config["api_allowlist"]
    assert (config["version"], config["mode"], config["enforce"]) == (1, "strict", True)


def test_a_proxy_that_is_down_is_told(tmp_path: Path) -> None:
    with (
        nobody_listens() as gate,
        running_lab(tmp_path / "h", EGRESS_UPSTREAM_PROXY=f"http://127.0.0.1:{gate}") as lab,
    ):
        lab.publish("agent-a", ROUTES)
        answers = [
            lab.client().ask(connect("bare.example.com")),
            lab.client().ask(get("http://api.example.com/allowed", "api.example.com")),
        ]
        assert [(answer.status, answer.reason) for answer in answers] == [(502, "gate-down")] * 2
        noted = lambda: [(record["verdict"], record["reason"]) for record in lab.records()]  # noqa: E731
        eventually(lambda: noted() == [("allowed", "gate-down")] * 2, "their records")
