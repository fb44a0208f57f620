"""The demo's agent, inside its bottle: it is refused, asks for exactly that over MCP, and tries again.

Standard library only: it runs with the bottle's Python. It prints one JSON line per step.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from typing import Any

MCP = os.environ.get("BOT_BOTTLE_MCP_URL", "http://127.0.0.1:9100/mcp")
ASKS = 20  # a call without an answer in time returns `pending`; repeating it continues the wait


def say(step: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"step": step, **facts}) + "\n")
    sys.stdout.flush()


def fetch(url: str) -> tuple[int, str]:
    """Return status and body. Proxy and CA come from the environment, as for any tool."""
    trusted = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=trusted), urllib.request.ProxyHandler()
    )
    try:
        with opener.open(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def call(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    request = urllib.request.Request(MCP, json.dumps(message).encode(), headers)  # noqa: S310 - ours
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=300) as answer:
        outcome: dict[str, Any] = json.load(answer)["result"]["structuredContent"]
        return outcome


def main(url: str) -> int:
    status, body = fetch(url)
    say("tried", url=url, status=status)
    if status != 403:
        return 1
    refusal = json.loads(body)
    ask = refusal["ask"]
    say("refused", reason=refusal["reason"], message=refusal["message"], ask=ask)
    ask["arguments"]["justification"] = "The build needs left-pad from the package index."
    outcome: dict[str, Any] = {"status": "pending"}
    for _ in range(ASKS):
        outcome = call(ask["tool"], ask["arguments"])
        say("answered", **{key: outcome.get(key) for key in ("status", "notes", "live_version")})
        if outcome["status"] != "pending":
            break
    if outcome["status"] not in ("approved", "modified"):
        return 1
    status, body = fetch(url)
    say("tried again", url=url, status=status, body=body.strip())
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
