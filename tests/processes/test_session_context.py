"""The session context and rpc of a bottle with history, through its own socket of the real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.site import HOST, Site
from tests.support.timeouts import PATIENCE, wait_until

pytestmark = pytest.mark.process
SLUG, PENDING = "context", "pending.example.com"
ASK = {"name": "egress-block", "arguments": {"host": PENDING, "justification": "Still open.\n# bot-bottle"}}


@pytest.fixture(scope="module")
def site(shared_site: Site) -> Site:
    """A bottle with one decided and one open proposal; the client of the open one has left."""
    site = shared_site.beside(SLUG)
    site.allow(path_allowlist=["/reflect"])
    with connected(site) as leaving:
        leaving.sendall(request("POST /rpc", json.dumps({"method": "tools/call", "params": ASK}).encode()))
        assert leaving.recv(1)  # it waits
        reset(leaving)
    wait_until(lambda: gone(site), what="the line about the client that left")
    return site


def agent_socket(site: Site) -> Path:
    return site.directory / "sockets" / "agent.sock"


def connected(site: Site) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20)
    connection.connect(str(agent_socket(site)))
    return connection


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def request(start: str, body: bytes, length: int | None = None) -> bytes:
    head = f"{start} HTTP/1.1\r\nHost: supervise\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def in_bottle(site: Site) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(agent_socket(site)))
    return httpx.Client(transport=transport, base_url="http://127.0.0.1:9100", timeout=PATIENCE)


def lines(site: Site, path: str) -> list[dict[str, Any]]:
    raw = [line for line in site.server.log().splitlines() if line.startswith('{"method"')]
    mine = [line for line in map(json.loads, raw) if line.get("bottle") == SLUG]
    return [line for line in mine if line["path"] == path]


def gone(site: Site) -> bool:
    return any(line.get("client") == "gone" for line in lines(site, "/rpc"))


@pytest.mark.parametrize("path", ["/session-context", "/memory/session-context"])
@pytest.mark.parametrize(
    ("depth", "layers"), [("minimal", []), ("standard", ["l0", "l1"]), ("deep", ["l0", "l1", "l2"])]
)
def test_every_depth_in_both_formats(site: Site, path: str, depth: str, layers: list[str]) -> None:
    query = {"depth": depth, "session_id": "session-1"}
    with in_bottle(site) as client:
        told = client.get(path, params=query)
        text = client.get(path, params={**query, "format": "text"})
    assert (told.status_code, text.status_code) == (200, 200)
    body = told.json()
    assert [key for key in body if key.startswith("l")] == layers
    assert [one["status"] for one in body["handles"]["proposals"]] == ["pending", "modified"]
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert text.text.startswith(f"# bot-bottle: session context of bottle {SLUG}, {depth}")
    assert text.text.endswith("\n# bot-bottle: end of session context\n")
    assert "Session: session-1\n" in text.text
    if layers:
        assert body["l0"]["reach"]["source"] == "proxy"
        assert f"- {HOST}: all methods; /reflect\n" in text.text
        assert "  | Still open.\n  | # bot-bottle\n" in text.text


def test_the_token_on_loopback_tells_the_same(site: Site) -> None:
    address = f"http://127.0.0.1:{site.server.agent_port}/session-context?depth=deep&format=text"
    assert httpx.get(address).status_code == 401
    by_token = httpx.get(address, headers={"Authorization": f"Bearer {site.bottle['token']}"}).text
    with in_bottle(site) as client:
        by_socket = client.get("/session-context?depth=deep&format=text").text
    assert by_token.splitlines()[1:] == by_socket.splitlines()[1:]  # the first has the time


def test_rpc_and_mcp_answer_alike(site: Site) -> None:
    call = {"method": "tools/call", "params": {"name": "list-egress-routes"}}
    with in_bottle(site) as client:
        bare = client.post("/rpc", json=call).json()
        enveloped = client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, **call}).json()
        assert client.get("/healthz").json() == {"ok": True}
    assert bare["result"] == enveloped["result"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/session-context?depth=x", None, 400),
        ("GET", f"/session-context?session_id={'x' * 4000}", None, 400),
        ("GET", f"/session-context?session_id={'x' * 15_000}", None, 400),
        ("GET", f"/session-context?{'a&' * 2000}", None, 400),
        ("GET", "/session-context?session_id=%00%ff%0a&format=%", None, 400),
        ("POST", "/session-context", b"{}", 405),
        ("GET", "/rpc", None, 405),
        ("POST", "/rpc", b"{", 400),
        ("POST", "/rpc", b'{"method": "nothing"}', 404),
        ("POST", "/rpc", b"x" * (2**20 + 1), 413),
        ("GET", "/memory", None, 404),
    ],
    ids=lambda value: str(value)[:40],
)
def test_junk_has_its_status_and_a_sentence(
    site: Site, method: str, path: str, body: bytes | None, status: int
) -> None:
    with in_bottle(site) as client:
        answer = client.request(method, path, content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
        assert answer.json()["error"]
        assert client.get("/health").text == "ok"


@pytest.mark.parametrize("ending", ["closed", "reset"])
@pytest.mark.parametrize("sent", [b"", b'{"method": "pi'])
def test_a_truncated_body_changes_nothing(site: Site, sent: bytes, ending: str) -> None:
    with connected(site) as connection:
        connection.sendall(request("POST /rpc", sent, length=1000))
        if ending == "reset":
            reset(connection)
    with in_bottle(site) as client:
        assert client.post("/rpc", json={"method": "ping"}).json() == {"result": {}}


def test_clients_that_do_not_read_their_answer_harm_nobody(site: Site) -> None:
    so_far = len(site.server.log())
    for _ in range(50):
        with connected(site) as connection:
            connection.sendall(request("GET /session-context?depth=deep", b""))
            reset(connection)
    with in_bottle(site) as client:
        assert client.get("/session-context").status_code == 200
    assert "Traceback" not in site.server.log()[so_far:]


@pytest.mark.parametrize("size", [20_000, 200_000, 2_000_000])
def test_a_line_too_long_to_read_harms_nobody(site: Site, size: int) -> None:
    with connected(site) as connection:
        answer = b""
        with suppress(ConnectionError):  # it may stop listening before we stop talking
            connection.sendall(request(f"GET /session-context?session_id={'x' * size}", b""))
            answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 4") or not answer
    with in_bottle(site) as client:
        assert client.get("/session-context").status_code == 200


def test_every_request_is_in_the_log(site: Site) -> None:
    with in_bottle(site) as client:
        client.get("/session-context?session_id=looked-for")
    last = lines(site, "/session-context")[-1]
    assert (last["bottle"], last["mcp"], last["status"]) == (SLUG, "session/context", 200)


def test_the_discovery_file_is_private_and_names_the_ports(site: Site) -> None:
    file = site.server.home / ".http.port"
    assert file.stat().st_mode & 0o777 == 0o600
    ports = json.loads(file.read_text())
    assert ports == {"agent": site.server.agent_port, "console": site.server.console_port}


def test_a_worker_that_ends_leaves_the_bottles_their_way_in(site: Site) -> None:
    before = site.pid("web")
    os.kill(before, signal.SIGTERM)

    def is_back() -> bool:
        with in_bottle(site) as client:
            return client.get("/health").status_code == 200

    wait_until(lambda: before not in site.pids("web") and is_back(), what="the next worker")
