"""An agent's side of one MCP tool call, as its own process: reads the call from stdin, prints the result."""

import json
import sys
import urllib.request

call = json.load(sys.stdin)
body = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": call["tool"], "arguments": call["arguments"]},
}
request = urllib.request.Request(
    call["url"],
    data=json.dumps(body).encode(),
    headers={
        "Authorization": f"Bearer {call['token']}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-06-18",
    },
)
with urllib.request.urlopen(request, timeout=660) as response:
    text = response.read().decode()
if text.startswith(("event:", "data:", ":", "id:")):  # a stream: the answer is its last message
    text = [line for line in text.splitlines() if line.startswith("data: {")][-1].removeprefix("data: ")
sys.stdout.write(text)
