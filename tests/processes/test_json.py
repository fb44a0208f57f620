"""The commands that serve: with --json, one line on standard output says where, once they do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import ROOT
from tests.support.server import KEPT_VARIABLES, prepare, stop

pytestmark = pytest.mark.process


@contextmanager
def started(home: Path, command: str) -> Iterator[dict[str, Any]]:
    prepare(home)
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    environment |= {"BOTTLE_HOME": str(home), "HOME": str(home)}
    environment |= dict.fromkeys(("SUPERVISE_PORT", "CONSOLE_PORT", "EGRESS_PORT"), "0")
    process = subprocess.Popen(
        [sys.executable, "manage.py", command, "--json"], cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        stop(process)
        rest = process.stdout.read()
        process.stdout.close()
    assert rest == "", "one line is all it says"


@pytest.mark.parametrize("command", ["up", "web"])
def test_a_server_says_where_operators_and_agents_find_it(tmp_path: Path, command: str) -> None:
    with started(tmp_path, command) as told:
        health = told["agents"].replace("/mcp", "/health")
        assert httpx.get(health).text == "ok"
        assert httpx.get(f"{told['console']}admin/login/").status_code == 200


def test_the_proxy_says_where_bottles_find_it(tmp_path: Path) -> None:
    with started(tmp_path, "egress") as told, socket.create_connection((told["bind"], told["port"])):
        pass


def test_the_proxy_knows_no_other_option() -> None:
    asked = [sys.executable, "manage.py", "egress", "--jsno"]
    finished = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 2
    assert "--json" in finished.stderr
