"""A stand-in for the egress process: a real Unix socket with answers that a test decides on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from egress.contract import snapshot
from egress.contract.sharding import control_socket, stop_note

Answer = Callable[[str], Any]  # from the rest of the path to what is said
LOADED_AT = datetime(2030, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC)


class StandIn:
    """Reads a bottle's files as the real one does, unless told to say something else."""

    def __init__(self, home: Path, number: int = 0) -> None:
        self.home, self.number = home, number
        self._socket = control_socket(home / "run", number)
        self.asked: list[tuple[str, str]] = []
        self.live: dict[str, int] = {}
        self.problems: dict[str, str] = {}
        self.credential_problems: dict[str, list[str]] = {}
        self.boot = "boot-1"
        self.queue: list[dict[str, Any]] = []
        self.dropped = 0
        self.raw: bytes | None = None
        self.reloading: Callable[[], None] = lambda: None
        self.reading: Callable[[], object] = lambda: None
        self._server: _Server | None = None

    # --- coming and going

    def start(self) -> None:
        (self.home / "run").mkdir(exist_ok=True)
        self._server = _Server(str(self._socket), self)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self, *, planned: bool = False) -> None:
        if planned:
            stop_note(self.home / "run", self.number).write_text(self.boot)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._socket.unlink()
            self._server = None

    def restart(self, boot: str) -> None:
        self.stop()
        self.boot, self.queue, self.live = boot, [], {}
        self.start()

    # --- what it says

    def answer(self, method: str, target: str) -> tuple[int, Any]:
        self.asked.append((method, target))
        path, query = urlsplit(target).path, dict(parse_qsl(urlsplit(target).query))
        match method, path.split("/")[1:]:
            case "POST", ["reload", slug]:
                return 200, self._reload(slug)
            case "GET", ["status"]:
                return 200, {"bottles": self._bottles(), "stopping": False, "port": 9101}
            case "GET", ["records"]:
                return 200, self._records(query)
            case "GET", ["bottles", slug, "routes"] if slug in self.live:
                return 200, {"bottle": slug, "version": self.live[slug], "routes": [{"host": "from.proxy"}]}
        return 404, {"error": "There is no such bottle."}

    def _reload(self, slug: str) -> dict[str, Any]:
        self.reloading()
        if slug not in self.problems:
            routes, gate = (self.home / "bottles" / slug / name for name in ("routes.yaml", "gate.yaml"))
            if not routes.exists():
                self.live.pop(slug, None)
                return self._ack(slug, "the bottle's files are gone")
            self.live[slug] = snapshot.load(routes.read_text(), gate.read_text()).version
        return self._ack(slug, self.problems.get(slug))

    def _ack(self, slug: str, problem: str | None) -> dict[str, Any]:
        loaded_at = LOADED_AT.isoformat() if slug in self.live else None
        return {
            "bottle": slug, "version": self.live.get(slug, 0), "loaded_at": loaded_at, "problem": problem,
        }  # fmt: skip

    def _bottles(self) -> dict[str, Any]:
        return {
            slug: {
                "version": version,
                "problem": self.problems.get(slug),
                "credential_problems": self.credential_problems.get(slug, []),
            }
            for slug, version in self.live.items()
        }

    def _records(self, query: dict[str, str]) -> dict[str, Any]:
        self.reading()
        after = int(query["after"]) if query.get("boot") == self.boot else 0
        dropped, self.dropped = self.dropped, 0
        batch = self.queue[after : after + 3]
        return {"boot": self.boot, "next": after + len(batch), "dropped": dropped, "records": batch}


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, stand_in: StandIn) -> None:
        super().__init__(path, _Handler)
        self.stand_in = stand_in

    def handle_error(self, *_: object) -> None:
        """Who asked may have hung up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _answer(self) -> None:
        if self.server.stand_in.raw is not None:
            self.wfile.write(self.server.stand_in.raw)
            self.close_connection = True
            return
        status, plain = self.server.stand_in.answer(self.command, self.path)
        body = json.dumps(plain).encode()
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer

    def address_string(self) -> str:
        return "control"


def record(**fields: Any) -> dict[str, Any]:
    """One record as the egress process gives it."""
    return {
        "at": 1_900_000_000.5,
        "bottle": "agent-a",
        "method": "GET",
        "scheme": "https",
        "host": "api.example.com",
        "path": "/v1",
        "route": "api.example.com",
        "table_version": 2,
        "verdict": "allowed",
        "reason": "ok",
        "status": 200,
        "bytes_out": 10,
        "bytes_in": 2000,
        "first_byte_ms": 1.5,
        "duration_ms": 2.5,
        **fields,
    }
