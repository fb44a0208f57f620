"""The agents of many bottles as one process: a line on stdin is a call, a line on stdout is its answer.

An empty line hangs up: calls that still wait end without an answer.
"""

import http.client
import json
import socket
import sys
import threading
from contextlib import suppress
from urllib.parse import urlsplit

WAITS = 660  # seconds: longer than the server lets a call wait
told = threading.Lock()
lines: set[socket.socket] = set()


def ask(connection: http.client.HTTPConnection, path: str, call: dict) -> str:
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": call["tool"], "arguments": call["arguments"]},
    }
    headers = {
        "Authorization": f"Bearer {call['token']}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-06-18",
        "Connection": "close",
    }
    connection.request("POST", path, json.dumps(body), headers)
    response = connection.getresponse()
    text = response.read().decode()
    if response.status != 200:
        raise OSError(f"{response.status} {text}")
    if text.startswith(("event:", "data:", ":", "id:")):  # a stream: the answer is its last message
        text = [line for line in text.splitlines() if line.startswith("data: {")][-1].removeprefix("data: ")
    return text


def answer(connection: http.client.HTTPConnection, line: socket.socket, path: str, call: dict) -> None:
    said = {"number": call["number"], "answer": "", "error": ""}
    try:
        said["answer"] = ask(connection, path, call)
    except (OSError, http.client.HTTPException) as problem:
        said["error"] = str(problem) or type(problem).__name__
    lines.discard(line)
    connection.close()
    with told:
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


for each in sys.stdin:
    if not each.strip():
        for line in list(lines):
            with suppress(OSError):  # it ended by itself in this instant
                line.shutdown(socket.SHUT_RDWR)
        continue
    call = json.loads(each)
    place = urlsplit(call["url"])
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=WAITS)
    connection.connect()
    line = connection.sock
    lines.add(line)
    threading.Thread(target=answer, args=(connection, line, place.path, call), daemon=True).start()
