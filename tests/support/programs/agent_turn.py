"""Runs one turn of an agent's command line beside a model that only says "Done." and keeps what it was sent.

Arguments: a bottle's agent socket (or nothing), then the command; `MODEL` in it becomes the model's port.
Port 9100 leads to the socket, as it does inside a bottle. Prints one JSON line: what the model was sent.
"""

import json
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SENT: list[str] = []


def events(*messages: dict[str, Any]) -> bytes:
    return b"".join(
        f"event: {message['type']}\ndata: {json.dumps(message)}\n\n".encode() for message in messages
    )


MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m1", "content": []}
USAGE = {"usage": {"input_tokens": 1, "output_tokens": 1}}
ANTHROPIC = events(
    {"type": "message_start", "message": {**MESSAGE, **USAGE, "stop_reason": None, "stop_sequence": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Done."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, **USAGE},
    {"type": "message_stop"},
)
CHUNK = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m1"}
CHOICES = (
    {"index": 0, "delta": {"role": "assistant", "content": "Done."}, "finish_reason": None},
    {"index": 0, "delta": {}, "finish_reason": "stop"},
)
OPENAI = "".join(
    f"data: {data}\n\n"
    for data in (*(json.dumps({**CHUNK, "choices": [choice]}) for choice in CHOICES), "[DONE]")
).encode()


class Model(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        is_messages = self.path.split("?")[0].endswith("/v1/messages")
        answer = ANTHROPIC if is_messages else OPENAI if self.path.endswith("/chat/completions") else b""
        if answer:
            SENT.append(body)
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self) -> None:
        self.send_error(404)

    do_HEAD = do_GET

    def log_message(self, *arguments: object) -> None:
        pass


def bridge(path: str) -> None:
    listener = socket.create_server(("127.0.0.1", 9100))

    def serve() -> None:
        while True:
            inner, _ = listener.accept()
            outer = socket.socket(socket.AF_UNIX)
            outer.connect(path)
            for source, sink in ((inner, outer), (outer, inner)):
                threading.Thread(target=pump, args=(source, sink), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


def pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while piece := source.recv(65536):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def main() -> int:
    path, *command = sys.argv[1:]
    if path:
        bridge(path)
    model = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    argv = [word.replace("MODEL", str(model.server_port)) for word in command]
    finished = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    sys.stderr.write(finished.stdout + finished.stderr)
    sys.stdout.write(json.dumps(SENT) + "\n")
    return finished.returncode


if __name__ == "__main__":
    sys.exit(main())
