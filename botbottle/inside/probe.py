"""Runs in a canary: checks that everything an agent needs is there. One line per answer; exits with 0 or 1.

The image is an agent's: the answers show whether it works, not whether it is honest.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial

SECONDS = 20
VERSION_SECONDS = 60


def main() -> int:
    wanted = json.loads(sys.argv[1])
    checks: list[tuple[str, Callable[[], str]]] = [("the bridge to the proxy", proxy)]
    if wanted["supervise"]:
        checks += [("the bridge to the agent plane", health), ("the MCP server's tools", tools)]
    checks += [(f"the file {path}", partial(present, path)) for path in wanted["files"]]
    if wanted["program"]:
        checks.append((f"the command {wanted['program']}", partial(program, wanted["program"])))
    if wanted["agent"]:
        checks.append((f"the agent {wanted['agent']}", partial(version, wanted["agent"])))
    failed = 0
    for name, check in checks:
        try:
            problem = check()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        print(f"failed: {name}: {problem}" if problem else f"ok: {name}", flush=True)  # noqa: T201
        failed += bool(problem)
    return min(failed, 1)


def proxy() -> str:
    status, body = _request(9101, "GET", "http://_egress.local/health", None)
    return "" if status == 200 else f"it answered {status} {body[:200]}"


def health() -> str:
    status, body = _request(9100, "GET", "/health", None)
    return "" if (status, body.strip()) == (200, "ok") else f"it answered {status} {body[:200]}"


def tools() -> str:
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
    status, body = _request(9100, "POST", "/mcp", asked)
    if status != 200:
        return f"it answered {status} {body[:200]}"
    return "" if json.loads(body)["result"]["tools"] else "it has none"


def present(path: str) -> str:
    return "" if os.path.getsize(path) else "it is empty"  # noqa: PTH202


def program(name: str) -> str:
    return "" if shutil.which(name) else "it is not installed, or not in PATH"


def version(name: str) -> str:
    ran = subprocess.run(  # noqa: S603
        [name, "--version"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=VERSION_SECONDS,
        check=False,
    )
    said = ran.stdout.decode(errors="replace").strip()[-300:]
    return "" if ran.returncode == 0 else f"'--version' ended with code {ran.returncode}: {said}"


def _request(port: int, method: str, target: str, body: str | None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    headers["MCP-Protocol-Version"] = "2025-11-25"
    try:
        connection.request(method, target, body, headers if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 20).decode(errors="replace")
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
