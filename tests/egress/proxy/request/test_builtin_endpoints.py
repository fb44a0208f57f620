"""What the data plane says itself: refusals that teach, _egress.local, and the relay to the web process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from egress.policy.asks import parse_egress_ask, parse_gate_ask
from tests.support.proxy_harness import Client, Harness, connect, get, pinned, request

pytestmark = pytest.mark.process
CREDENTIALS = "Proxy-Authorization: Basic YWdlbnQtYTp0b2tlbi1vZi1h"  # agent-a:token-of-a


@pytest.mark.parametrize(
    ("method", "url", "reason", "ask"),
    [
        (
            "GET",
            "http://new.example.org/repos/x?token=1",
            "no-route",
            {"host": "new.example.org", "path_allowlist": ["/repos/x"], "methods": ["GET"]},
        ),
        (
            "DELETE",
            "http://api.example.com/elsewhere",
            "path",
            {"host": "api.example.com", "path_allowlist": ["/elsewhere"], "methods": ["DELETE"]},
        ),
        ("GET", "http://new.example.org/", "no-route", {"host": "new.example.org", "methods": ["GET"]}),
    ],
)
def test_a_refusal_carries_the_arguments_to_ask_with(
    lab: Harness, method: str, url: str, reason: str, ask: dict[str, object]
) -> None:
    host = url.split("/")[2]
    answer = lab.client().ask(request(method, url, host))
    assert (answer.status, answer.reason, answer.json["reason"]) == (403, reason, reason)
    assert answer.json["ask"]["tool"] == "egress-block"
    arguments = answer.json["ask"]["arguments"]
    assert arguments.pop("justification").startswith(method)
    assert arguments == ask
    assert parse_egress_ask(arguments) == ask
    assert "token=1" not in answer.body.decode()


def test_a_refusal_inside_tls_names_method_and_path(lab: Harness) -> None:
    client = lab.secured("new.example.org")
    answer = client.ask(request("POST", "/v1/x", "new.example.org", "Content-Length: 2", body=b"{}"))
    assert answer.status == 403
    assert answer.json["ask"]["arguments"]["path_allowlist"] == ["/v1/x"]
    assert lab.asked_names() == []


def test_a_host_missing_at_the_gate_points_to_its_own_tool(lab: Harness) -> None:
    lab.publish("agent-a", [pinned("api.example.com")], gate=[])
    answer = lab.secured("api.example.com").ask(get("/x", "api.example.com"))
    assert (answer.reason, answer.json["ask"]["tool"]) == ("gate", "pipelock-block")
    arguments = answer.json["ask"]["arguments"]
    arguments.pop("justification")
    assert parse_gate_ask(arguments)["host"] == "api.example.com"


@pytest.mark.parametrize(
    "headers",
    [
        ["Accept: text/plain"],
        ["Accept: */*", "User-Agent: git/2.39.5"],
        ["User-Agent: Go-http-client/1.1"],
    ],
)
def test_a_refusal_is_text_for_those_who_show_only_text(lab: Harness, headers: list[str]) -> None:
    answer = lab.client().ask(get("http://new.example.org/", "new.example.org", *headers))
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert b'call the tool egress-block with {"host": "new.example.org"' in answer.body


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Accept: */*", "User-Agent: curl/8.0"],
        ["Accept: text/plain, application/json"],
        ["Accept: application/json", "User-Agent: Go-http-client/1.1"],
        ["Accept: application/vnd.git-lfs+json", "User-Agent: git-lfs/3.4.0"],
    ],
)
def test_a_refusal_is_json_for_all_others(lab: Harness, headers: list[str]) -> None:
    answer = lab.client().ask(get("http://new.example.org/", "new.example.org", *headers))
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["ask"]["arguments"]["host"] == "new.example.org"


def test_nothing_is_suggested_where_asking_cannot_help(lab: Harness) -> None:
    for url in ("http://printer.local/", "http://localhost/", "http://metadata.google.internal/"):
        answer = lab.client().ask(get(url, url.split("/")[2]))
        assert (answer.status, "ask" in answer.json) == (403, False)
        assert "It cannot be asked for: " in answer.json["message"]
        assert b"-block" not in answer.body


def test_the_allowlist_is_the_live_table_without_secrets(lab: Harness) -> None:
    answer = lab.client().ask(get("http://_egress.local/allowlist", "_egress.local"))
    hosts = {route["host"]: route for route in answer.json["routes"]}
    assert set(hosts) == {"api.example.com", "bare.example.com", "secret.example.com"}
    assert hosts["secret.example.com"]["auth_injected"] is True
    assert b"CANARY" not in answer.body


def test_health_tells_the_live_version(lab: Harness) -> None:
    version = lab.publish("agent-a", [])
    answer = lab.client().ask(get("http://_egress.local/health", "_egress.local"))
    assert (answer.json["ok"], answer.json["version"]) == (True, version)


def test_a_used_up_lease_can_be_asked_for_again(lab: Harness) -> None:
    lease = {"max_uses": 1, "granted_at": "2099-01-01T00:00:00Z", "expires_at": "2099-01-01T01:00:00Z"}
    hosts = ("api.example.com", "bare.example.com")
    lab.publish("agent-a", [pinned(hosts[0], methods=["GET"], lease=lease), pinned(hosts[1], lease=lease)])
    narrow, bare = get("http://api.example.com/docs", hosts[0]), connect(hosts[1])
    assert [lab.client().ask(message).status for message in (narrow, bare)] == [200, 200]
    again = {"max_uses": 1, "ttl_seconds": 3600}
    for message, ask in (
        (narrow, {"host": hosts[0], "path_allowlist": ["/docs"], "methods": ["GET"], "lease": again}),
        (bare, {"host": hosts[1], "lease": again}),
    ):
        answer = lab.client().ask(message)
        assert (answer.status, answer.reason, answer.json["ask"]["tool"]) == (403, "used-up", "egress-block")
        arguments = answer.json["ask"]["arguments"]
        assert "used-up" in arguments.pop("justification")
        assert parse_egress_ask(arguments) == ask
        assert lab.records()[-1]["ask"]["arguments"]["host"] == ask["host"]


@pytest.mark.parametrize(
    "target",
    ["http://_egress.local/", "http://_egress.local/why", "http://_egress.local:81/health"],
)
def test_other_local_addresses_are_explained(lab: Harness, target: str) -> None:
    host = target.split("/")[2]
    assert lab.client().ask(get(target, host)).status in (400, 404)


def test_an_unknown_token_gets_407(lab: Harness) -> None:
    answer = lab.tcp_client().ask(get("http://_egress.local/health", "_egress.local"))
    assert (answer.status, answer.headers["proxy-authenticate"]) == (407, 'Basic realm="bottle"')


# --- the relay


class Web:
    """Stands for the web process on its private socket: keeps what it was sent, answers as told."""

    def __init__(self, path: str) -> None:
        self.received = bytearray()
        self.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        self.go_on = threading.Event()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(20)
                while b"\r\n\r\n" not in self.received:
                    self.received += connection.recv(65536)
                for part in self.answer.split(b"<wait>"):
                    connection.sendall(part)
                    if part != self.answer.split(b"<wait>")[-1]:
                        self.go_on.wait(20)

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def web(lab: Harness) -> Iterator[Web]:
    path = lab.home / "run" / "relay.sock"
    path.unlink(missing_ok=True)
    web = Web(str(path))
    yield web
    web.close()
    path.unlink()


def ask_supervisor(lab: Harness, way: str, *headers: str) -> Client:
    if way == "agent.sock":
        client = lab.client(name="agent.sock")
        client.send(get("/mcp?x=1", "localhost", *headers))
    else:
        client = lab.client()
        client.send(get("http://supervise/mcp?x=1", "supervise", *headers))
    return client


@pytest.mark.parametrize("way", ["agent.sock", "supervise"])
def test_the_relay_stamps_the_bottles_identity_and_drops_forged_ones(
    lab: Harness, web: Web, way: str
) -> None:
    forged = [
        "X-Bottle-Identity: agent-b",
        "x-bottle-identity: agent-b",
        "X_Bottle_Identity: agent-b",
        "X-Bottle_Identity: agent-b",
        "Connection: x-bottle-identity",
    ]
    assert ask_supervisor(lab, way, *forged).answer().body == b"ok"
    head = bytes(web.received).decode().lower()
    assert head.startswith("get /mcp?x=1 http/1.1\r\n")
    assert head.count("identity") == 1
    assert "\r\nx-bottle-identity: agent-a\r\n" in head


def test_what_the_supervisor_streams_arrives_at_once(lab: Harness, web: Web) -> None:
    web.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n<wait>0\r\n\r\n"
    client = ask_supervisor(lab, "agent.sock")
    while client.line():
        pass
    assert [client.line(), client.line()] == [b"2", b"hi"]
    web.go_on.set()
    assert client.line() == b"0"


def test_a_supervisor_that_is_down_is_told_apart_from_a_refusal(lab: Harness) -> None:
    answer = ask_supervisor(lab, "agent.sock").answer()
    assert (answer.status, answer.reason) == (503, "supervisor-down")


@pytest.fixture
def nobody_to_ask(lab: Harness) -> Iterator[Harness]:
    """agent-a, while its manifest says `supervise: false`."""
    lab.identify("agent-a", supervise=False)
    lab.control("POST", "/reload/agent-a")
    yield lab
    lab.identify("agent-a")
    lab.control("POST", "/reload/agent-a")
    assert lab.client(name="agent.sock").ask(get("/mcp", "localhost")).status == 503, "it may ask again"


def test_a_bottle_without_a_supervisor_reaches_none_by_any_way(nobody_to_ask: Harness, web: Web) -> None:
    lab = nobody_to_ask
    sockets = lab.home / "bottles" / "agent-a" / "sockets"
    assert [path.name for path in sockets.iterdir()] == ["proxy.sock"]
    by_token = lab.tcp_client()
    by_token.send(get("http://supervise/mcp", "supervise", CREDENTIALS))
    for client in (ask_supervisor(lab, "supervise"), by_token):
        answer = client.answer()
        assert (answer.status, answer.reason) == (403, "no-supervisor")
        assert "ask" not in answer.json
    assert lab.client().ask(connect("supervise")).status == 400
    assert web.received == b""
    assert lab.client(slug="agent-b", name="agent.sock").ask(get("/mcp", "localhost")).body == b"ok"


def test_a_connection_from_before_is_refused_too(lab: Harness, web: Web) -> None:
    client = lab.client(name="agent.sock")
    assert client.ask(get("/mcp", "localhost")).body == b"ok"
    web.received.clear()
    lab.identify("agent-a", supervise=False)
    lab.control("POST", "/reload/agent-a")
    assert client.ask(get("/mcp", "localhost")).reason == "no-supervisor"
    assert web.received == b""
    lab.identify("agent-a")
    lab.control("POST", "/reload/agent-a")


def test_the_agent_socket_is_not_a_proxy(lab: Harness, web: Web) -> None:
    for message in (get("http://api.example.com/allowed", "api.example.com"), connect("bare.example.com")):
        assert lab.client(name="agent.sock").ask(message).status == 400
    assert lab.requests == []
    assert web.received == b""
