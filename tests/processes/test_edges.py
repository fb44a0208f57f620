"""The real server at its edges: what cannot be read, what is too large, and which plane answers what."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from tests.support import ROOT
from tests.support.server import RunningServer, running_server
from tests.support.timeouts import PATIENCE

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def token(server: RunningServer) -> str:
    return server.create_bottle("edges")["token"]


def raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(request)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
        return answer


@pytest.mark.parametrize(
    "length",
    ["abc", "-1", "1, 2", "5\r\nContent-Length: 6", "0x10"],
    ids=["word", "minus", "list", "two", "hex"],
)
def test_a_bad_content_length_is_a_clear_400(server, token, length) -> None:
    answer = raw(
        server.agent_port,
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {length}\r\n\r\n{{}}".encode(),
    )
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert "Content-Length" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_one_mebibyte_is_413_and_nothing_is_queued(server, token, chunked) -> None:
    size = 1024 * 1024 + 1
    content = iter([b"x" * 65536] * (size // 65536 + 1)) if chunked else b"x" * size
    response = httpx.post(
        server.mcp_url,
        content=content,
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        timeout=60,
    )
    assert response.status_code == 413
    assert "larger than 1048576 bytes" in response.json()["error"]["message"]


def test_an_endless_body_is_cut_off(server, token) -> None:
    """What is past any patience ends the connection instead of filling the disk."""
    with socket.create_connection(("127.0.0.1", server.agent_port), timeout=PATIENCE) as connection:
        connection.sendall(
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            "Content-Length: 1000000000\r\n\r\n".encode()
        )
        with pytest.raises(OSError):
            for _ in range(1000):
                connection.sendall(b"x" * 65536)


@pytest.mark.parametrize(
    "path", ["/", "/admin/", "/api/proposals/", "/ws/queue/", "/static/admin/css/base.css"]
)
def test_the_console_does_not_exist_on_the_agent_plane(server, token, path) -> None:
    """By no name, header or script prefix."""
    agent = f"http://127.0.0.1:{server.agent_port}"
    for headers in (
        {},
        {"Host": f"127.0.0.1:{server.console_port}"},
        {
            "X-Forwarded-Port": str(server.console_port),
            "X-Forwarded-Host": f"localhost:{server.console_port}",
        },
        {"Daphne-Root-Path": "/admin"},
    ):
        response = httpx.get(agent + path, headers={"Authorization": f"Bearer {token}", **headers})
        assert response.status_code == (405 if path == "/" else 404)
        assert "location" not in response.headers


@pytest.mark.parametrize("path", ["/mcp", "/health", "/healthz"])
def test_the_agents_endpoints_do_not_exist_on_the_operator_plane(server, token, path) -> None:
    headers = {"Authorization": f"Bearer {token}", "Host": f"localhost:{server.console_port}"}
    assert httpx.get(server.console_url + path, headers=headers).status_code == 404
    assert httpx.post(server.console_url + path, headers=headers, json={}).status_code in {403, 404}


@contextmanager
def held_port(*addresses: str) -> Iterator[int]:
    """The same one on each address. Only who asks for it by its number can listen there."""
    with ExitStack() as held:
        port = 0
        for address in addresses:
            holder = held.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((address, port))
            port = holder.getsockname()[1]
        yield port


def test_one_port_on_two_addresses_is_still_two_planes(tmp_path) -> None:
    ports = ("SUPERVISE_PORT", "CONSOLE_PORT")
    with (
        held_port("127.0.0.1", "127.0.0.2") as port,
        running_server(tmp_path / "h", "web", CONSOLE_BIND="127.0.0.2", **dict.fromkeys(ports, str(port))),
    ):
        agents, console = f"http://127.0.0.1:{port}", f"http://127.0.0.2:{port}"
        assert httpx.get(f"{agents}/health").text == "ok"
        assert httpx.get(f"{agents}/admin/login/").status_code == 404
        assert httpx.get(f"{console}/health", headers={"Host": "localhost"}).status_code == 404
        assert httpx.get(f"{console}/static/admin/css/base.css").status_code == 200


def test_an_agent_cannot_open_the_consoles_websocket(server, token) -> None:
    answer = raw(
        server.agent_port,
        b"GET /ws/queue/ HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    )
    assert b" 101 " not in answer.split(b"\r\n")[0]


def test_the_identity_header_is_believed_only_on_the_private_socket(server) -> None:
    server.create_bottle("relayed")
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    headers = {"X-Bottle-Identity": "relayed", "Content-Type": "application/json"}
    assert httpx.post(server.mcp_url, json=ping, headers=headers).status_code == 401
    private = httpx.HTTPTransport(uds=str(server.home / "run" / "relay.sock"))
    with httpx.Client(transport=private, base_url="http://localhost") as client:
        assert client.post("/mcp", json=ping, headers=headers).json()["result"] == {}
        twice = [
            ("X-Bottle-Identity", "relayed"),
            ("X-Bottle-Identity", "edges"),
            ("Content-Type", "application/json"),
        ]
        assert client.post("/mcp", json=ping, headers=twice).status_code == 401
        assert client.get("/admin/").status_code == 404


def test_a_rotated_token_stops_at_once(server) -> None:
    old = server.create_bottle("rotates")["token"]
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}

    def status(token: str) -> int:
        return httpx.post(server.mcp_url, json=ping, headers={"Authorization": f"Bearer {token}"}).status_code

    assert status(old) == 200
    new = json.loads(server.manage("bottle", "token", "rotates", "--json"))["token"]
    assert (status(old), status(new)) == (401, 200)
    server.manage("bottle", "delete", "rotates")
    assert status(new) == 401


def test_state_is_private_to_its_owner(server) -> None:
    server.create_bottle("private")
    mounted = {"ca.pem", "sockets", "current-config"}  # into the bottle, where other users may live
    tests_made = {"server.log", *(path.name for path in (server.home / "bottles").glob("*.yaml"))}
    others = {path.name for path in (server.home / "bottles").iterdir()} - {"private"}
    assert server.home.stat().st_mode & 0o077 == 0
    for path in server.home.rglob("*"):
        if not (mounted | tests_made | others).intersection(path.relative_to(server.home).parts):
            assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"SUPERVISE_RESPONSE_TIMEOUT_SECONDS": "0"},
            "SUPERVISE_RESPONSE_TIMEOUT_SECONDS='0' must be a positive",
        ),
        ({"SUPERVISE_RESPONSE_TIMEOUT_SECONDS": "soon"}, "SUPERVISE_RESPONSE_TIMEOUT_SECONDS='soon'"),
        ({"SUPERVISE_RESPONSE_TIMEOUT_SECONDS": "nan"}, "SUPERVISE_RESPONSE_TIMEOUT_SECONDS='nan'"),
        ({"SUPERVISE_PORT": "eighty"}, "SUPERVISE_PORT='eighty' must be a whole number"),
        ({"SUPERVISE_DEBUG": "maybe"}, "SUPERVISE_DEBUG='maybe' is neither true nor false"),
        ({"DATABASE_URL": "mysql://x/y"}, "DATABASE_URL must look like postgres://"),
        ({"REDIS_URL": "localhost"}, "REDIS_URL must look like redis://"),
        (
            {"SUPERVISE_HOSTS": "https://agents.example.com"},
            "SUPERVISE_HOSTS='https://agents.example.com' is no",
        ),
        ({"SUPERVISE_HOSTS": "agents.example.com:9100"}, "Name hosts without scheme and port"),
        ({"BOTTLE_HOME": "/proc/nowhere"}, "BOTTLE_HOME=/proc/nowhere cannot be used"),
    ],
)
def test_junk_in_the_environment_is_one_sentence_and_exit_code_2(tmp_path, variables, said) -> None:
    finished = _manage({"PATH": os.environ["PATH"], "BOTTLE_HOME": str(tmp_path / "home"), **variables}, "up")
    assert finished.returncode == 2
    assert said in finished.stderr
    assert len(finished.stderr.strip().splitlines()) == 1


def test_a_port_in_use_is_one_sentence_and_exit_code_2(server, tmp_path) -> None:
    with (
        pytest.raises(AssertionError, match=r"Cannot listen on 127.0.0.1:\d+ \(Address already in use\)"),
        running_server(tmp_path / "other", SUPERVISE_PORT=str(server.agent_port)),
    ):
        pass


def test_a_second_start_on_the_same_home_is_refused(server) -> None:
    finished = _manage(server.environment, "web")
    assert (finished.returncode, finished.stderr.count("\n")) == (2, 1)
    assert "already runs on" in finished.stderr
    assert httpx.get(server.mcp_url.replace("/mcp", "/health")).text == "ok"


def _manage(environment: dict[str, str], command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", command],
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
