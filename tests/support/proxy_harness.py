"""A bottle's view of the real data plane: its process, recording origins, raw sockets to attack it with."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from botbottle.core.files import write_atomically
from egress.contract.sharding import control_socket, owner
from egress.contract.snapshot import render_gate, render_routes
from egress.policy.routes import Route
from egress.policy.table import RouteTable, Snapshot
from tests.support import ROOT
from tests.support.origins import Origins, Seen, TestAuthority
from tests.support.server import KEPT_VARIABLES, state_of, stop
from tests.support.timeouts import PATIENCE, wait_until

ADDRESSES = {
    "api.example.com": "127.0.0.2",
    "other.example.com": "127.0.0.3",
    "bare.example.com": "127.0.0.4",
    "secret.example.com": "127.0.0.5",
    "expired-certificate.example.com": "127.0.0.6",
    "wrong-certificate.example.com": "127.0.0.7",
    "unknown-authority.example.com": "127.0.0.9",
    "resolved.example.net": "127.0.0.13",
}
PUBLIC = ["93.184.215.14", "93.184.215.15"]  # for which the last of these stands in
PROXY_WITH_DNS = "tests.support.programs.proxy_with_dns"
SECRET = "canary-7c1f0e9b5d"
TOKENS = {"agent-a": "token-of-a", "agent-b": "token-of-b"}


def pinned(host: str, **fields: Any) -> dict[str, Any]:
    return {"host": host, "pinned_addresses": [ADDRESSES.get(host, "127.0.0.2")], **fields}


# `other` is never allowed to agent-a: whatever reaches it has got past the policy.
USUAL_ROUTES = [
    pinned("api.example.com", path_allowlist=["/allowed", "/status", "/big"], dlp={"out": False}),
    pinned("bare.example.com"),
    pinned(
        "secret.example.com", path_allowlist=["/allowed"], auth={"scheme": "Bearer", "token_ref": "CANARY"}
    ),
]


class Answer:
    """A response, read by a parser that knows nothing of the proxy."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return self.headers.get("x-egress-reason", "")


class Client:
    """One connection, plain or TLS, with nothing between the test and the bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.settimeout(PATIENCE)
        self.received = bytearray()
        self._buffer = bytearray()
        self._events = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, data: bytes) -> Answer:
        self.send(data)
        return self.answer(to=data.partition(b" ")[0])

    def answer(self, *, to: bytes = b"GET") -> Answer:
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        raw = self.take(self._buffer.index(b"\r\n\r\n") + 4)[:-4]
        start, *lines = raw.decode("latin-1").split("\r\n")
        status = int(start.split()[1])
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            key = name.lower()
            headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
        return Answer(status, headers, self._body(status, headers, to))

    def _body(self, status: int, headers: dict[str, str], to: bytes) -> bytes:
        if to == b"HEAD" or (to == b"CONNECT" and status == 200) or status < 200 or status in (204, 304):
            return b""
        if headers.get("transfer-encoding") == "chunked":
            return self._chunks(headers)
        if "content-length" in headers:
            return self.take(int(headers["content-length"]))
        return self.everything()

    def _chunks(self, headers: dict[str, str]) -> bytes:
        body = b""
        while size := int(self.line(), 16):
            body += self.take(size)
            assert self.line() == b""
        while trailer := self.line():
            name, _, value = trailer.decode("latin-1").partition(":")
            headers[f"trailer {name.lower()}"] = value.strip()
        return body

    def take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._more()
        return self.take(self._buffer.index(b"\r\n") + 2)[:-2]

    def event(self) -> bytes:
        """The next one of a stream in chunks: a busy proxy may pass on two in one chunk."""
        while b"\n\n" not in self._events:
            self._events += self.take(int(self.line(), 16))
            assert self.line() == b""
        end = self._events.index(b"\n\n") + 2
        event, self._events = self._events[:end], self._events[end:]
        return event

    def everything(self) -> bytes:
        """All that still comes, however the connection ends."""
        try:
            while True:
                self._more()
        except (ConnectionError, ssl.SSLError):
            pass
        return self.take(len(self._buffer))

    def everything_until(self, *last: bytes, seconds: float) -> bytes:
        """All that comes until one of these has come, or the end, or nothing for so long."""
        self.socket.settimeout(seconds)
        try:
            while not any(each in self._buffer for each in last):
                self._more()
        except OSError:  # of which the end, a broken TLS and a timeout are kinds
            pass
        finally:
            self.socket.settimeout(PATIENCE)
        return self.take(len(self._buffer))

    def hears(self, seconds: float) -> bool:
        """Whether something comes within this time, or the end."""
        self.socket.settimeout(seconds)
        try:
            if not self._buffer:
                self._more()
        except TimeoutError:
            return False
        except (ConnectionError, ssl.SSLError):
            pass  # whoever reads on will see it too
        finally:
            self.socket.settimeout(PATIENCE)
        return True

    def _more(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError(f"closed after {bytes(self._buffer)!r}")
        self._buffer += data
        self.received += data

    def close(self) -> None:
        self.socket.close()


class Harness:
    def __init__(
        self,
        home: Path,
        origins: Origins,
        authority: TestAuthority,
        *,
        inside: Sequence[str] = (),
        **variables: str,
    ) -> None:
        """`inside` is the command that starts the data plane where it is to run."""
        self.home = home
        self._inside = inside
        self.origins = origins
        self.authority = authority
        self._versions: dict[str, int] = {}
        self._clients: list[Client] = []
        self._names, self._stand_ins = home / "names.json", home / "stand-ins.json"
        self._asked, self._dialled = home / "asked.txt", home / "dialled.txt"
        self._names.write_text("{}")
        ports = {443: origins.tls_port, 80: origins.http_port}
        self._stand_ins.write_text(json.dumps({
            f"{address}:{port}": [ADDRESSES["resolved.example.net"], ports[port]]
            for address in PUBLIC for port in ports
        }))  # fmt: skip
        self._asked.touch()
        self._dialled.touch()
        self._log = home / "egress.log"
        self._environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ} | {
            "BOTTLE_HOME": str(home),
            "EGRESS_PORT": "0",
            "EGRESS_PROCESSES": os.environ.get("LAB_PROCESSES", "1"),
            "EGRESS_UPSTREAM_CA": str(authority.path),
            "EGRESS_PINNED_PORTS": f"443={origins.tls_port},80={origins.http_port}",
            "CANARY": SECRET,
            "PYTHONPATH": str(ROOT),
            **variables,
        }
        self.process = self._start()

    # --- the process

    def _start(self) -> subprocess.Popen[bytes]:
        for slug in TOKENS:
            self.identify(slug)
        files = (self._names, self._asked, self._dialled, self._stand_ins)
        with self._log.open("a") as log:
            process = subprocess.Popen(
                [*self._inside, sys.executable, "-m", PROXY_WITH_DNS, *map(str, files)],
                cwd=ROOT, env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(lambda: self._is_ready(process), what="the egress process")
        return process

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, self.log()
        return (self.home / "run" / "egress.json").exists()

    def identify(self, slug: str, **more: Any) -> None:
        directory = self.home / "bottles" / slug
        directory.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(TOKENS[slug].encode()).hexdigest()
        (directory / "identity.json").write_text(json.dumps({"slug": slug, "token_sha256": digest, **more}))

    @contextmanager
    def held(self, slug: str) -> Iterator[None]:
        """The bottle's own process does nothing meanwhile. What it is sent waits for it."""
        several = self.processes > 1
        pid = numbered(self.process.pid)[owner(slug, self.processes)] if several else self.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: state_of(pid) == "T", what="the stop")
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def restart(self, *, kill: bool = False) -> None:
        self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        self.process.wait(20)
        (self.home / "run" / "egress.json").unlink(missing_ok=True)
        self.process = self._start()

    def close(self) -> None:
        for client in self._clients:
            client.close()
        stop(self.process)

    def log(self) -> str:
        return self._log.read_text()

    # --- the control plane's side

    @property
    def processes(self) -> int:
        return json.loads((self.home / "run" / "egress.json").read_text())["processes"]

    def control(self, method: str, path: str) -> Any:
        """As the control plane does: asked of the process that serves the bottle, or of all of them."""
        named = re.match(r"/(?:reload|bottles)/([^/]+)", path)
        if named:
            return self.control_of(owner(named[1], self.processes), method, path)
        answers = [self.control_of(number, method, path) for number in range(self.processes)]
        if path == "/status":
            answers[0]["bottles"] = {slug: one for each in answers for slug, one in each["bottles"].items()}
            answers[0] |= {key: sum(each[key] for each in answers) for key in ("connections", "strangers")}
        return answers[0]

    def control_of(self, number: int, method: str, path: str) -> Any:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(control_socket(self.home / "run", number)))
            answer = Client(connection).ask(f"{method} {path} HTTP/1.1\r\nHost: control\r\n\r\n".encode())
            return answer.json

    def write(self, slug: str, routes: list[dict[str, Any]], *, gate: list[str] | None = None) -> int:
        """The next version's files; nobody is told."""
        version = self._versions.get(slug, 0) + 1
        self._versions[slug] = version
        parsed = tuple(Route.from_dict(route) for route in routes)
        hosts = tuple(route.host for route in parsed) if gate is None else tuple(gate)
        snapshot = Snapshot(slug, version, RouteTable(parsed, hosts), datetime.now(UTC).isoformat())
        directory = self.home / "bottles" / slug
        write_atomically(directory / "gate.yaml", render_gate(snapshot))
        write_atomically(directory / "routes.yaml", render_routes(snapshot))
        return version

    def publish(self, slug: str, routes: list[dict[str, Any]], *, gate: list[str] | None = None) -> int:
        version = self.write(slug, routes, gate=gate)
        ack = self.control("POST", f"/reload/{slug}")
        assert (ack["version"], ack["problem"]) == (version, None), ack
        return version

    def names(self, **answers: list[str] | list[list[str]]) -> None:
        """What the name service says; of lists in a list, one after the other."""
        self._names.write_text(
            json.dumps({name.replace("__", "."): found for name, found in answers.items()})
        )

    def asked_names(self) -> list[str]:
        return self._asked.read_text().split()

    def dialled(self) -> list[str]:
        """Addresses with their ports, in order, whatever stood in for them."""
        return self._dialled.read_text().split()

    def records(self) -> list[dict[str, Any]]:
        """All that are kept, oldest first."""
        return [record for number in range(self.processes) for record in self._records_of(number)]

    def _records_of(self, number: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        query = "after=0"
        while batch := (answer := self.control_of(number, "GET", f"/records?{query}"))["records"]:
            found += batch
            query = f"after={answer['next']}&boot={answer['boot']}"
        return found

    # --- the bottle's side

    def client(self, slug: str = "agent-a", name: str = "proxy.sock") -> Client:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENCE)
        connection.connect(str(self.home / "bottles" / slug / "sockets" / name))
        return self._kept(Client(connection))

    def tcp_client(self) -> Client:
        port = json.loads((self.home / "run" / "egress.json").read_text())["port"]
        return self._kept(Client(socket.create_connection(("127.0.0.1", port), PATIENCE)))

    def secured(self, host: str, *, name: str | None = None, slug: str = "agent-a") -> Client:
        """Through CONNECT and TLS, trusting the bottle's CA and the test origins' CA, as a tool would."""
        client = self.client(slug)
        answer = client.ask(connect(host))
        assert answer.status == 200, answer.body
        return self.wrap(client, name or host, slug=slug)

    def wrap(self, client: Client, name: str | None, *, slug: str = "agent-a") -> Client:
        context = ssl.create_default_context(cafile=self.authority.path)
        context.load_verify_locations(self.home / "bottles" / slug / "ca.pem")
        context.set_alpn_protocols(["http/1.1"])
        context.check_hostname = name is not None
        return self._kept(Client(context.wrap_socket(client.socket, server_hostname=name)))

    def _kept(self, client: Client) -> Client:
        self._clients.append(client)
        return client

    # --- what the origins saw

    @property
    def requests(self) -> list[Seen]:
        return self.origins.requests

    def received(self) -> bytes:
        """Everything that came back to any client."""
        return b"".join(bytes(client.received) for client in self._clients)

    def reset(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
        self.origins.forget()
        self._asked.write_text("")
        self._dialled.write_text("")


def numbered(parent: int) -> dict[int, int]:
    """The children of an egress process that has several, by their number."""
    found = {}
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        told = next(each for each in variables if each.startswith(b"BOTTLE_EGRESS_PART="))
        found[json.loads(told.partition(b"=")[2])["number"]] = int(pid)
    return found


def connect(host: str, port: int = 443) -> bytes:
    return f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()


def get(target: str, host: str, *headers: str) -> bytes:
    return request("GET", target, host, *headers)


def request(method: str, target: str, host: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


@contextmanager
def running_lab(home: Path, *, inside: Sequence[str] = (), **variables: str) -> Iterator[Harness]:
    """Origins, the data plane's process, and two bottles: agent-a with the usual routes, agent-b's other."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "unknown").mkdir()
    authority, unknown = TestAuthority(home), TestAuthority(home / "unknown")
    origins = Origins()
    for host, address in ADDRESSES.items():
        days = -1 if host.startswith("expired") else 30
        names = ["unrelated.example.com"] if host.startswith("wrong") else [host, f"*.{host}"]
        signs = unknown if host.startswith("unknown") else authority
        origins.add(host, address, signs.context(names, days=days))
    lab = Harness(home, origins, authority, inside=inside, **variables)
    try:
        lab.publish("agent-a", USUAL_ROUTES)
        lab.publish("agent-b", [pinned("other.example.com")])
        yield lab
    finally:
        lab.close()
        origins.close()


@contextmanager
def nobody_listens() -> Iterator[int]:
    """A port that is taken, and refuses."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


def eventually(condition: Any, what: str) -> Any:
    return wait_until(condition, what=what)


def at_rest(measured: Callable[[], int]) -> int:
    """What it comes to when it no longer changes, which shows only when a moment has passed."""
    before, found = None, measured()
    while found != before:
        time.sleep(0.3)
        before, found = found, measured()
    return found


def now() -> float:
    return time.monotonic()
