"""The obvious server, to compare with: a thread per call that polls for a response file every 50 ms.

Loopback only, no authentication, nothing checked and nothing applied: it does less than a real one would. It
gets the best of the standard library: a long backlog, no Nagle, one write per answer, and its operator in a
process of its own, so that deciding does not queue behind the polling threads.

Run `baseline.py agents|operator DIRECTORY`; the port is printed on the first line.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.05
WAIT_SECONDS = 900.0
TOOL = {
    "name": "egress-block",
    "description": "Ask the operator for a route to a host. The call waits for the decision.",
    "inputSchema": {
        "type": "object",
        "properties": {"host": {"type": "string"}, "justification": {"type": "string"}},
        "required": ["host", "justification"],
    },
}


class Server(ThreadingHTTPServer):
    request_queue_size = 4096
    daemon_threads = True

    def __init__(self, handler: type[JsonHandler], directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.directory = directory

    def proposal(self, proposal_id: str) -> Path:
        return self.directory / f"{proposal_id}.proposal.json"

    def response(self, proposal_id: str) -> Path:
        return self.directory / f"{proposal_id}.response.json"


class JsonHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one write for headers and body
    server: Server

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(self.answer(asked)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def log_message(self, format: str, *args: object) -> None:
        pass


class AgentHandler(JsonHandler):
    """The MCP endpoint."""

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        answer = {"jsonrpc": "2.0", "id": asked["id"]}
        match asked["method"]:
            case "tools/call":
                return answer | {"result": self._wait_for_decision(asked["params"]["arguments"])}
            case "tools/list":
                return answer | {"result": {"tools": [TOOL]}}
        return answer | {"error": {"code": -32601, "message": "Unknown method."}}

    def _wait_for_decision(self, arguments: dict[str, Any]) -> dict[str, Any]:
        proposal_id = uuid.uuid4().hex
        write_atomically(self.server.proposal(proposal_id), {"id": proposal_id, **arguments})
        decision = {"status": "pending", "notes": "", "proposal_id": proposal_id}
        decision |= self._poll(self.server.response(proposal_id)) or {}
        text = f"status: {decision['status']}\nnotes: {decision['notes']}"
        return {"content": [{"type": "text", "text": text}], "structuredContent": decision, "isError": False}

    def _poll(self, response: Path) -> dict[str, Any] | None:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            try:
                decision: dict[str, Any] = json.loads(response.read_text())
            except FileNotFoundError:
                time.sleep(POLL_SECONDS)
            else:
                return decision
        return None


class OperatorHandler(JsonHandler):
    """The operator's side: the decision is a file, visible to the polling threads once it is renamed."""

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        response = self.server.response(asked["id"])
        decided_at = write_atomically(response, {"status": asked["status"], "notes": asked["note"]})
        self.server.proposal(asked["id"]).unlink()
        return {"id": asked["id"], "decided_at": decided_at}


def write_atomically(path: Path, content: dict[str, Any]) -> float:
    """Write and rename; returns the moment just before the rename."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content))
    moment = time.time()
    temporary.rename(path)
    return moment


def main() -> None:
    handler = {"agents": AgentHandler, "operator": OperatorHandler}[sys.argv[1]]
    server = Server(handler, Path(sys.argv[2]))
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
