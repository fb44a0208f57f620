"""Everyday tools in a bottle, with interception on: they trust the bottle's CA and need no option for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.bottles.conftest import World
from tests.support import ROOT
from tests.support.isolated_clients import Clients
from tests.support.package_site import INDEX

pytestmark = [pytest.mark.process, pytest.mark.tools]
VENV = Path(sys.prefix)
OPEN_PATHS = ["/simple", "/files", "/npm", "/git", "/plain"]
PYTHON = "/opt/venv/bin/python"
GET_WITH_REQUESTS = "import requests,sys; r = requests.get(sys.argv[1]); print(r.status_code, r.text)"
GET_WITH_HTTPX = "import httpx,sys; r = httpx.get(sys.argv[1]); print(r.status_code, r.text)"
GET_WITH_FETCH = "fetch(process.argv[1]).then(async r => console.log(r.status, await r.text()))"


@pytest.fixture(scope="module")
def bottle(world: World, clients: Clients) -> str:
    world.manifest(
        "tools",
        mounts=[
            {"path": str(VENV), "target": "/opt/venv"},
            {"path": str(clients.modules), "target": "/opt/clients"},
        ],
        routes=[{"host": INDEX, "methods": ["GET", "HEAD"], "path_allowlist": OPEN_PATHS}],
    )
    return "tools"


def commands(url: str, clients: Clients) -> dict[str, list[str]]:
    node = clients.node.replace(str(clients.modules), "/opt/clients")
    return {
        "curl": ["curl", "--silent", "--write-out", "%{http_code}", url],
        "requests": [PYTHON, "-c", GET_WITH_REQUESTS, url],
        "httpx": [PYTHON, "-c", GET_WITH_HTTPX, url],
        "fetch": [node, "-e", GET_WITH_FETCH, url],
    }


@pytest.mark.parametrize("tool", ["curl", "requests", "httpx", "fetch"])
def test_an_allowed_page_is_read(world: World, bottle: str, clients: Clients, tool: str) -> None:
    finished = world.run(bottle, *commands(f"https://{INDEX}/plain", clients)[tool])
    assert "plain text" in finished.stdout, finished.stderr
    assert "200" in finished.stdout


@pytest.mark.parametrize("tool", ["curl", "requests", "httpx", "fetch"])
def test_another_path_gets_the_refusal_that_helps(
    world: World, bottle: str, clients: Clients, tool: str
) -> None:
    finished = world.run(bottle, *commands(f"https://{INDEX}/private", clients)[tool])
    assert "403" in finished.stdout, finished.stderr
    refusal = json.loads(finished.stdout[finished.stdout.index("{") : finished.stdout.rindex("}") + 1])
    assert refusal["reason"] == "path"
    assert refusal["ask"]["arguments"]["path_allowlist"] == ["/private"]


def test_git_clones(world: World, bottle: str) -> None:
    finished = world.run(
        bottle, "sh", "-c", f"git clone -q https://{INDEX}/git/tiny.git /tmp/tiny && git -C /tmp/tiny log"
    )
    assert "the first commit" in finished.stdout, finished.stderr


def test_pip_downloads(world: World, bottle: str) -> None:
    finished = world.run(
        bottle, PYTHON, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--dest", "/tmp",
        "--index-url", f"https://{INDEX}/simple/", "tiny",
    )  # fmt: skip
    assert "Saved" in finished.stdout, finished.stdout + finished.stderr


def test_npm_views(world: World, bottle: str) -> None:
    finished = world.run(bottle, "npm", "view", "--registry", f"https://{INDEX}/npm/", "tiny", "description")
    assert "a tiny package" in finished.stdout, finished.stderr


@pytest.mark.parametrize("tool", ["git", "pip", "npm"])
def test_what_no_route_leads_to_is_refused_for_package_tools_too(
    world: World, bottle: str, tool: str
) -> None:
    elsewhere = "https://elsewhere.example.com"
    line = {
        "git": ["git", "clone", f"{elsewhere}/x.git", "/tmp/x"],
        "pip": [PYTHON, "-m", "pip", "download", "-vv", "--no-deps", "--retries", "0", "--dest", "/tmp",
                "--index-url", f"{elsewhere}/simple/", "tiny"],
        "npm": ["npm", "view", "--registry", elsewhere, "tiny"],
    }[tool]  # fmt: skip
    finished = world.run(bottle, *line)
    assert finished.returncode != 0
    assert "403" in finished.stdout + finished.stderr


def test_the_checkout_of_the_project_is_not_visible(world: World, bottle: str) -> None:
    finished = world.run(bottle, "ls", str(ROOT / "manage.py"))
    assert finished.returncode != 0
