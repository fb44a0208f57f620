"""Many agents as one process: calls made at a steady rate and held open. The plan comes on stdin."""

import json
import socket
import sys
import time
from urllib.parse import urlsplit

plan = json.load(sys.stdin)
place = urlsplit(plan["url"])
held = []
for number in range(plan["calls"]):
    arguments = {"host": f"flood{number}.example.com", "path_allowlist": ["/x"], "justification": "many"}
    call = {"name": "egress-block", "arguments": arguments}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
    head = (
        f"POST {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {plan['token']}\r\n"
        "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
        f"MCP-Protocol-Version: 2025-06-18\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection((place.hostname, place.port))
    connection.sendall(head.encode() + body)
    held.append(connection)
    time.sleep(1 / plan["a_second"])  # the rate is what this is about
sys.stdout.write("sent\n")
sys.stdout.flush()
time.sleep(plan["hold"])
