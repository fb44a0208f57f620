"""What is measured: bot-bottle's data plane, squid and mitmproxy, each mode with processes of its own."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.outbound.certificates import TestCa
from botbottle.core.files import write_atomically
from egress.contract import sharding
from egress.contract.snapshot import render_gate, render_routes
from egress.policy.routes import Auth, Route
from egress.policy.table import RouteTable, Snapshot
from egress.proxy.state.records import BATCH
from egress.proxy.tls.authority import ensure

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
HOST, BARE_HOST = "origin.example.com", "tunnelled.example.com"  # the second for `MIXED` only
MITMDUMP = ROOT / ".cache" / "bench" / "mitmproxy" / "bin" / "mitmdump"
MIXED = "mixed"  # one host inspected, the other one tunnelled
OTHER_ROUTES = 200  # so that the table is no smaller than a real one
BOTTLES, TOKEN = 8, "bench-token"  # a bottle is served by one process, so that several are needed
SECRET_NAME, SECRET = "BENCH_SERVICE_TOKEN", "made-up-5f1c8a02d47be693"  # of one of the other routes
_BETWEEN_READS = 0.25
# Every read of TLS in uvloop takes 256 KB for a moment. Depending on what a process did before, the C library
# maps and unmaps them each time, which doubles what the load costs in some runs and not in others. Not so.
STEADY = {"MALLOC_MMAP_THRESHOLD_": str(8 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
# What is done with records is not the data plane's cost: where the next ones are is read, and no more.
_BATCH_START = re.compile(
    rb'{"boot":"(?P<boot>[^"]*)","next":(?P<next>[0-9]+),"dropped":(?P<dropped>[0-9]+),'
)


@dataclass
class Subject:
    """One way to the origin. `processes` are all that it costs."""

    name: str
    mode: str
    proxy: tuple[str, int] | None
    dial: tuple[str, int]
    processes: list[int]
    headers: tuple[str, ...] = ("",)

    @property
    def label(self) -> str:
        return f"{self.mode}, {self.name}" if self.proxy else self.name

    def lane(self, bundle: Path, name: str = HOST) -> dict[str, object]:
        dial = self.dial if name == HOST else (name, self.dial[1])
        return {
            "dial": dial, "name": name, "bundle": str(bundle), "proxy": self.proxy,
            "headers": self.headers, "processes": self.processes,
        }  # fmt: skip

    def megabytes(self) -> float:
        return sum(_resident(process) for process in self.processes) / 1024


@contextmanager
def origin(folder: Path, ca: TestCa) -> Iterator[Subject]:
    port = free_port()
    pem = ca.leaf(HOST, BARE_HOST)
    environment = _plain_environment(folder) | STEADY
    command = [sys.executable, HERE / "origin.py", pem, str(port)]
    with _running(command, folder / "origin.log", port, environment):
        yield Subject("direct", "", None, ("127.0.0.1", port), [])


# --- bot-bottle


@contextmanager
def bot_bottle(mode: str, folder: Path, ca: TestCa, port: int) -> Iterator[Subject]:
    """The data plane with a table of many routes, its records read as they come, searching for secrets."""
    home = folder / "home"
    processes = sharding.configured("EGRESS_PROCESSES")
    slugs = _slugs(processes)
    for slug in slugs:
        _write_bottle(home / "bottles" / slug, mode)
        ca.trust(home / "bottles" / slug / "ca.pem")
    listening = free_port()
    environment = _plain_environment(home) | {
        "BOTTLE_HOME": str(home), "EGRESS_PORT": str(listening), "EGRESS_UPSTREAM_CA": str(ca.path),
        "EGRESS_PINNED_PORTS": f"443={port}", "EGRESS_PROCESSES": str(processes), "PYTHONPATH": str(ROOT),
        SECRET_NAME: SECRET,
    }  # fmt: skip
    command = [sys.executable, "-c", "import sys; from egress.proxy.main import main; sys.exit(main())"]
    headers = tuple(_credentials(slug) for slug in slugs)
    with (
        _running(command, folder / "egress.log", listening, environment) as process,
        _reading_records(home / "run", processes),
    ):
        for header in headers:
            _check_search(listening, header)
        yield Subject("bot-bottle", mode, ("127.0.0.1", listening), (HOST, 443), _tree(process), headers)


def _slugs(processes: int) -> list[str]:
    """As many for each process, taking turns."""
    names = [f"bench-{number}" for number in range(100 * BOTTLES)]
    of_each = [[slug for slug in names if sharding.owner(slug, processes) == at] for at in range(processes)]
    return [slug for turn in zip(*of_each, strict=False) for slug in turn][: max(BOTTLES, processes)]


def _credentials(slug: str) -> str:
    return f"Proxy-Authorization: Basic {base64.b64encode(f'{slug}:{TOKEN}'.encode()).decode()}\r\n"


def _write_bottle(directory: Path, mode: str) -> None:
    slug = directory.name
    directory.mkdir(parents=True)
    for folder in (directory.parent.parent, directory.parent, directory):
        folder.chmod(0o700)
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    (directory / "identity.json").write_text(json.dumps({"slug": slug, "token_sha256": digest}))
    write_table(directory, mode, 1)
    ensure(directory, slug)


def write_table(directory: Path, mode: str, version: int) -> None:
    """The bottle's own routes: those of `MIXED` differ from version to version, where no load goes."""
    routes = [Route(f"service-{number}.example.com", ("/v1", "/v2")) for number in range(1, OTHER_ROUTES)]
    # Only a bottle with a secret of its own has one to be searched for, besides the shapes of tokens.
    routes.append(Route("service-0.example.com", ("/v1", "/v2"), auth=Auth("Bearer", SECRET_NAME)))
    routes += _to_the_origin(mode, version)
    table = RouteTable(tuple(routes), tuple(route.host for route in routes))
    snapshot = Snapshot(directory.name, version, table, datetime.now(UTC).isoformat())
    write_atomically(directory / "gate.yaml", render_gate(snapshot))
    write_atomically(directory / "routes.yaml", render_routes(snapshot))


def _to_the_origin(mode: str, version: int) -> list[Route]:
    narrowed = {"pinned_addresses": ("127.0.0.1",), "methods": ("GET", "POST")}
    bare = Route(HOST if mode == "tunnel" else BARE_HOST, pinned_addresses=("127.0.0.1",))
    if mode == "intercept":
        return [Route(HOST, ("/small", "/large"), **narrowed)]
    if mode == MIXED:
        return [Route(HOST, ("/allowed", "/small", "/streams", f"/only/{version}"), **narrowed), bare]
    return [bare]


def _check_search(port: int, credentials: str) -> None:
    """Raises SystemExit when the bottle's own secret may leave: then what is measured is not what is told."""
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        line = f"GET http://{HOST}/small?x={SECRET} HTTP/1.1\r\nHost: {HOST}\r\n"
        connection.sendall(f"{line}{credentials}Connection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    if b"\r\nx-egress-reason: dlp\r\n" not in answer.lower():
        raise SystemExit(f"bot-bottle does not search for its secret: {answer[:300]!r}")


@contextmanager
def _reading_records(run: Path, processes: int) -> Iterator[None]:
    """Takes every record away, as the control plane does. Raises SystemExit when some were lost."""
    stopping = threading.Event()
    lost: list[int] = []
    _wait_until((run / sharding.DISCOVERY).exists, "bot-bottle does not serve")

    def read() -> None:
        places = {sharding.control_socket(run, number): (0, "") for number in range(processes)}
        while not stopping.is_set():
            most = 0
            for path, (after, boot) in places.items():
                start = _BATCH_START.match(ask(path, f"/records?after={after}&boot={boot}&wait=0"))
                assert start is not None
                places[path] = int(start["next"]), start["boot"].decode()
                most = max(most, places[path][0] - after)
                lost.append(int(start["dropped"]))
            if most < BATCH:
                stopping.wait(_BETWEEN_READS)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(10)
    if sum(lost):
        raise SystemExit(f"bot-bottle: {sum(lost)} records were not read in time")


def ask(path: Path, target: str, method: str = "GET") -> bytes:
    """What a process answers to the control plane."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        connection.sendall(
            f"{method} {target} HTTP/1.1\r\nHost: control\r\nConnection: close\r\n\r\n".encode()
        )
        received = bytearray()
        while b"\r\n\r\n" not in received:
            received += _more(connection)
        head, _, body = bytes(received).partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        while len(body) < length:
            body += _more(connection)
        return body


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 20)
    if not data:
        raise SystemExit("bot-bottle hung up on the control plane")
    return data


# --- what else a user could take


def has_squid() -> bool:
    """Debian's plain `squid` cannot look inside TLS; `squid-openssl` can."""
    return shutil.which("squid") is not None and _certgen().exists()


def _certgen() -> Path:
    return Path("/usr/lib/squid/security_file_certgen")


@contextmanager
def squid(mode: str, folder: Path, ca: TestCa, port: int) -> Iterator[Subject]:
    listening = free_port()
    (folder / "hosts").write_text(f"127.0.0.1 {HOST}\n")
    own = TestCa(folder, "squid")
    inspecting = (
        f"http_port 127.0.0.1:{listening} ssl-bump generate-host-certificates=on tls-cert={own.pem}\n"
        f"sslcrtd_program {_certgen()} -s {folder}/leaves -M 4MB\n"
        f"tls_outgoing_options cafile={ca.path}\n"
        "acl first at_step SslBump1\nssl_bump peek first\nssl_bump bump all\n"
    )
    (folder / "squid.conf").write_text(
        (inspecting if mode == "intercept" else f"http_port 127.0.0.1:{listening}\n")
        + f"hosts_file {folder}/hosts\npid_filename none\ncache deny all\ncache_mem 8 MB\n"
        + f"http_access allow all\naccess_log stdio:{folder}/access.log\ncache_log {folder}/cache.log\n"
        + f"coredump_dir {folder}\n"
        + "shutdown_lifetime 0 seconds\nvisible_hostname bench\npinger_enable off\nmax_filedescriptors 4096\n"
    )
    if mode == "intercept":
        subprocess.run(
            [_certgen(), "-c", "-s", folder / "leaves", "-M", "4MB"], check=True, capture_output=True
        )
        ca.trust(own.path)
    _give_to("proxy", folder)
    command = ["squid", "-N", "-f", folder / "squid.conf"]
    with _running(command, folder / "squid.log", listening) as process:
        yield Subject(
            f"squid {_version('squid')}", mode, ("127.0.0.1", listening), (HOST, port), _tree(process)
        )


def _version(program: str) -> str:
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return next((word for word in told.replace("\n", " ").split() if word[0].isdigit()), "")


@contextmanager
def mitmproxy(mode: str, folder: Path, ca: TestCa, port: int) -> Iterator[Subject]:
    """Without an addon, so without any policy or record, in its favour."""
    listening = free_port()
    own = TestCa(folder, "mitmproxy")
    (folder / "mitmproxy-ca.pem").write_bytes(own.pem.read_bytes())
    ca.trust(own.path)
    options = {
        "confdir": folder, "listen_host": "127.0.0.1", "listen_port": listening, "termlog_verbosity": "error",
        "flow_detail": 0, "ssl_verify_upstream_trusted_ca": ca.path, "stream_large_bodies": "256k",
        "http2": "false",
    }  # fmt: skip
    settings = [part for name, value in options.items() for part in ("--set", f"{name}={value}")]
    ignoring = ["--ignore-hosts", ".*"] if mode == "tunnel" else []
    with _running([MITMDUMP, *settings, *ignoring], folder / "mitmproxy.log", listening) as process:
        name = f"mitmproxy {_version(str(MITMDUMP))}"
        yield Subject(name, mode, ("127.0.0.1", listening), ("127.0.0.1", port), _tree(process))


# --- processes


@contextmanager
def _running(
    command: list[object], log: Path, port: int, environment: dict[str, str] | None = None
) -> Iterator[int]:
    """Started, waited for, and stopped by its own id."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env=environment or _plain_environment(log.parent),
        )  # fmt: skip
    try:
        _wait_for(port, process, log)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    def listens() -> bool:
        if process.poll() is not None:
            raise SystemExit(f"{process.args} ended: {log.read_text()[-2000:]}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    _wait_until(listens, f"{process.args} does not listen")


def _wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(otherwise)
        time.sleep(0.05)


def _plain_environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"] + ":/usr/sbin", "HOME": str(home), "LANG": "C.UTF-8"}


def _tree(process: int) -> list[int]:
    """The process and all that it started."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [process]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def _resident(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def _give_to(user: str, folder: Path) -> None:
    """squid, started by root, goes on as its own user."""
    if os.geteuid() != 0:
        return
    pwd.getpwnam(user)
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, user)
    for parent in folder.parents:
        if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o011)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
