"""Where real programs run as they would inside a bottle: the proxy and the bottle's CA in their settings."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import PROGRAMS, ROOT
from tests.support.proxy_harness import TOKENS, Harness, running_lab
from tests.support.requirements import require
from tests.support.timeouts import PATIENCE
from tests.support.tool_upstreams import (
    GrpcUpstream,
    Http2Upstream,
    Service,
    Upstream,
    WebSocketUpstream,
    download,
    echo,
    git_repositories,
    upload,
)

HERE = PROGRAMS.parents[1] / "tools"
NODE_PACKAGES = Path(os.environ.get("BOTTLE_TOOLS_DIR") or ROOT / ".cache" / "tools")
INSPECTED, BARE, SOCKETS, HTTP2, GRPC, DENIED = (
    f"{name}.example.com" for name in ("inspected", "bare", "sockets", "http2", "grpc", "denied")
)
ADDRESSES = {
    INSPECTED: "127.0.0.20",
    BARE: "127.0.0.21",
    SOCKETS: "127.0.0.22",
    HTTP2: "127.0.0.23",
    GRPC: "127.0.0.24",
}
OPEN_PATHS = {
    INSPECTED: ["/echo/allowed", "/simple", "/files", "/npm", "/team/project.git", "/download", "/upload"],
    SOCKETS: ["/chat"],
}
ROUTES = [
    {"host": host, "path_allowlist": OPEN_PATHS.get(host, []), "pinned_addresses": [address]}
    for host, address in ADDRESSES.items()
]
_BUNDLE_VARIABLES = (
    "SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT",
    "NODE_EXTRA_CA_CERTS", "npm_config_cafile", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)  # fmt: skip


@dataclass
class Finished:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def everything(self) -> str:
        return self.out + self.err


class Workshop:
    def __init__(
        self, lab: Harness, upstreams: dict[str, Upstream], repositories: Path, bridge_port: int
    ) -> None:
        self.lab = lab
        self.upstreams = upstreams
        self.repositories = repositories
        port = json.loads((lab.home / "run" / "egress.json").read_text())["port"]
        self.by_token = f"http://agent-a:{TOKENS['agent-a']}@127.0.0.1:{port}"
        self.by_socket = f"http://127.0.0.1:{bridge_port}"
        self.bundle = lab.home / "bundle.pem"
        bottle_ca = lab.home / "bottles" / "agent-a" / "ca.pem"
        self.bundle.write_bytes(bottle_ca.read_bytes() + lab.authority.path.read_bytes())

    def environment(self, home: Path, **variables: str) -> dict[str, str]:
        """All that a program gets to know: nothing of this machine's own settings."""
        return {
            "PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8",
            "TOOLS_FOLDER": str(NODE_PACKAGES),
            **dict.fromkeys(("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"), self.by_token),
            **dict.fromkeys(_BUNDLE_VARIABLES, str(self.bundle)),
            **variables,
        }  # fmt: skip

    def refusals(self, host: str) -> list[dict[str, Any]]:
        return [
            entry for entry in self.lab.records() if (entry["host"], entry["verdict"]) == (host, "refused")
        ]


class Bottle:
    """One test's programs, with a home of their own."""

    def __init__(self, workshop: Workshop, home: Path) -> None:
        self.workshop = workshop
        self.home = home

    def run(
        self, *command: str | Path, seconds: float = PATIENCE, cwd: Path | None = None, **variables: str
    ) -> Finished:
        found = shutil.which(str(command[0]))
        require(found, str(command[0]), f"install {command[0]}")
        finished = subprocess.run(
            [str(found), *map(str, command[1:])], cwd=cwd or self.home, capture_output=True, text=True,
            env=self.workshop.environment(self.home, **variables), timeout=seconds, check=False,
        )  # fmt: skip
        return Finished(finished.returncode, finished.stdout, finished.stderr)

    def start(self, *command: str | Path, stdin: int | None = None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(part) for part in command], cwd=self.home, env=self.workshop.environment(self.home),
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


def refusal_in(text: str) -> dict[str, Any]:
    """The arguments that a refusal offers, wherever a program shows its body."""
    plain = json.loads(text[text.index("{") : text.rindex("}") + 1])
    assert plain["error"] == "egress-refused", plain
    return dict(plain["ask"])


@contextmanager
def running_workshop(home: Path) -> Iterator[Workshop]:
    with (
        running_lab(home) as lab,
        _bridge(home / "bottles" / "agent-a" / "sockets" / "proxy.sock") as bridge_port,
    ):
        repositories = home / "repositories"
        repositories.mkdir()
        services: dict[str, Service] = {"/echo": echo, "/download": download, "/upload": upload}
        if backend := git_backend():
            services["/team"] = git_repositories(repositories, backend)
        port, contexts = lab.origins.tls_port, {}
        for host in ADDRESSES:
            contexts[host] = lab.authority.context([host])
        both = {
            host: Upstream(ADDRESSES[host], port, contexts[host], dict(services))
            for host in (INSPECTED, BARE)
        }
        others = [
            WebSocketUpstream(ADDRESSES[SOCKETS], port, contexts[SOCKETS]),
            Http2Upstream(ADDRESSES[HTTP2], port, home / f"{HTTP2}-30.pem"),
            GrpcUpstream(ADDRESSES[GRPC], port, home / f"{GRPC}-30.pem", home / "grpc.log"),
        ]
        lab.publish("agent-a", ROUTES)
        try:
            yield Workshop(lab, both, repositories, bridge_port)
        finally:
            for upstream in (*both.values(), *others):
                upstream.close()


def git_backend() -> Path | None:
    git = shutil.which("git")
    if git is None:
        return None
    folder = subprocess.run([git, "--exec-path"], capture_output=True, text=True, check=True).stdout.strip()
    program = Path(folder) / "git-http-backend"
    return program if program.exists() else None


@contextmanager
def _bridge(socket: Path) -> Iterator[int]:
    """A TCP port in front of the bottle's own socket, as the shim inside a bottle offers it."""
    loop = asyncio.new_event_loop()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(str(socket))
        await asyncio.gather(pipe(reader, inner_writer), pipe(inner_reader, writer))

    server = loop.run_until_complete(asyncio.start_server(accepted, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
