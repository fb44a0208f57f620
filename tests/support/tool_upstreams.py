"""Local TLS servers for real programs: packages, repositories, endless bytes, WebSocket, HTTP/2 and gRPC."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import hypercorn.asyncio
import hypercorn.config
import websockets.sync.server

from tests.support import ROOT
from tests.support.server import stop
from tests.support.timeouts import PATIENCE, wait_until

BLOCK = bytes(range(256)) * 4096  # 1 MiB
Service = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    """One request, with its body decoded and an answer of known length."""

    protocol_version = "HTTP/1.1"
    server: Upstream

    def do_any(self) -> None:
        self.server.seen.append(f"{self.command} {self.path}")
        prefix = "/" + self.path.split("/")[1].partition("?")[0]
        self.server.services.get(prefix, _not_found)(self)

    do_GET = do_HEAD = do_POST = do_PUT = do_any

    def pieces(self) -> Iterator[bytes]:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            yield from self._chunks()
            return
        missing = int(self.headers.get("Content-Length", 0))
        while missing:
            piece = self.rfile.read(min(missing, 1 << 20))
            assert piece, "the body ended too early"
            missing -= len(piece)
            yield piece

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    def answer(self, body: bytes, kind: str = "application/json", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not onto the terminal."""


class Upstream(ThreadingHTTPServer):
    """`services` maps the first segment of a path to what answers it; `seen` is every request line."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self, address: str, port: int, context: ssl.SSLContext, services: dict[str, Service]
    ) -> None:
        super().__init__((address, port), Request)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.services = services
        self.seen: list[str] = []
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def handle_error(self, *_: object) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):  # a program may hang up at any time
            self.errors.append(error)

    def close(self) -> None:
        self.shutdown()
        self._thread.join(10)
        self.server_close()


def _not_found(request: Request) -> None:
    request.answer(b"{}", status=404)


def echo(request: Request) -> None:
    body = b"".join(request.pieces())
    told = {"method": request.command, "path": request.path, "body": body.decode("latin-1")}
    request.answer(json.dumps(told).encode())


# --- endless bytes


def generated(size: int) -> Iterator[bytes]:
    """`size` bytes of which no two blocks are alike, made without storing them."""
    for start in range(0, size, len(BLOCK)):
        yield (start.to_bytes(8, "big") + BLOCK[8:])[: size - start]


def download(request: Request) -> None:
    size = int(request.path.rpartition("/")[2])
    request.send_response(200)
    request.send_header("Content-Length", str(size))
    request.end_headers()
    for block in generated(size):
        request.wfile.write(block)


def upload(request: Request) -> None:
    digest, size = hashlib.sha256(), 0
    if request.headers.get("Expect"):
        request.wfile.flush()
    for piece in request.pieces():
        digest.update(piece)
        size += len(piece)
    request.answer(json.dumps({"size": size, "sha256": digest.hexdigest()}).encode())


# --- git


def git_repositories(root: Path, program: Path) -> Service:
    """`git http-backend` as a web server runs it."""

    def serve(request: Request) -> None:
        path, _, query = request.path.partition("?")
        environment = {
            "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(root), "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": request.command, "PATH_INFO": path, "QUERY_STRING": query,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""), "REMOTE_USER": "agent",
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""), "GIT_CONFIG_NOSYSTEM": "1",
            "HOME": str(root),
        }  # fmt: skip
        finished = subprocess.run(
            [program], input=b"".join(request.pieces()), env=environment, capture_output=True, check=True
        )
        head, _, body = finished.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        request.answer(body, fields["Content-Type"], int(fields.get("Status", "200").split()[0]))

    return serve


# --- other protocols


class WebSocketUpstream:
    """Sends every message back."""

    def __init__(self, address: str, port: int, context: ssl.SSLContext) -> None:
        self._server = websockets.sync.server.serve(self._talk, address, port, ssl=context)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @staticmethod
    def _talk(connection: websockets.sync.server.ServerConnection) -> None:
        for message in connection:
            connection.send(message)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(10)


class Http2Upstream:
    """Hypercorn, which says which version of HTTP it was asked in."""

    def __init__(self, address: str, port: int, pem: Path) -> None:
        config = hypercorn.config.Config()
        config.bind, config.certfile, config.keyfile = [f"{address}:{port}"], str(pem), str(pem)
        config.loglevel = "ERROR"
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(config,), daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE), "Hypercorn did not start"

    def _run(self, config: hypercorn.config.Config) -> None:
        asyncio.set_event_loop(self._loop)
        serving = hypercorn.asyncio.serve(self._app, config, shutdown_trigger=self._stop.wait)
        self._loop.run_until_complete(serving)
        self._loop.close()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                event = (await receive())["type"]
                await send({"type": f"{event}.complete"})
                if event == "lifespan.shutdown":
                    return
                self._started.set()
        body = json.dumps({"http": scope["http_version"], "path": scope["path"]}).encode()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": body})

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)


class GrpcUpstream:
    """In a process of its own: gRPC's threads do not survive the forks of a test run."""

    def __init__(self, address: str, port: int, pem: Path, log: Path) -> None:
        program = Path(__file__).parent / "programs" / "grpc_server.py"
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, program, f"{address}:{port}", pem],
                cwd=ROOT, env={"PATH": os.environ["PATH"]}, stdout=output, stderr=output,
            )  # fmt: skip
        wait_until(self._is_ready, what="the gRPC server")

    def _is_ready(self) -> bool:
        text = self._log.read_text()
        assert self._process.poll() is None, text
        return "ready" in text

    def close(self) -> None:
        stop(self._process)
