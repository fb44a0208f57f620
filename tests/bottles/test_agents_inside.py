"""Real agents in real bottles: refused, asking over MCP, approved, through. Only the model is scripted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bottles.conftest import ANTHROPIC, OPENAI, World
from tests.support.isolated_clients import Clients
from tests.support.scripted_model import PAGES, SECRET_OF_THE_PAGE, URL

pytestmark = [pytest.mark.process, pytest.mark.clients]
PROMPT = f"Read {URL} and tell me what it says."


def manifest(clients: Clients, kind: str, model: str, **keys: Any) -> dict[str, Any]:
    """The model is reached as an allowed route, read by the proxy; the programs are mounted as they are."""
    modules = str(clients.modules)
    return {
        "agent": kind,
        "mounts": [{"path": modules, "target": "/opt/clients"}],
        "routes": [{"host": model, "methods": ["GET", "POST"], "path_allowlist": ["/v1"]}],
        **keys,
    }


def inside(clients: Clients, program: str) -> str:
    return program.replace(str(clients.modules), "/opt/clients")


def the_loop(world: World, slug: str, *command: str) -> str:
    agent = world.begin(slug, *command)
    try:
        asked = world.approve_when_asked(slug)
        said, _ = agent.communicate(timeout=180)
    finally:
        agent.kill()
        agent.wait()
    assert asked["tool"] == "egress-block"
    assert agent.returncode == 0, said
    return said


def test_claude_code_is_refused_asks_and_gets_through(world: World, clients: Clients) -> None:
    world.manifest(
        "claude",
        **manifest(
            clients, "claude", ANTHROPIC,
            env={"ANTHROPIC_API_KEY": "fake", "ENABLE_TOOL_SEARCH": "false"},
        ),
    )  # fmt: skip
    said = the_loop(
        world, "claude",
        inside(clients, clients.claude), "-p", PROMPT, "--allowedTools", "Bash,mcp__supervise__egress-block",
    )  # fmt: skip
    assert f"done: {SECRET_OF_THE_PAGE}" in said


def test_opencode_is_refused_asks_and_gets_through(world: World, clients: Clients) -> None:
    home = world.root / "opencode-home"
    settings = home / ".config" / "opencode" / "opencode.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        '{"autoupdate": false, "provider": {"fake": {"npm": "@ai-sdk/openai-compatible", "name": "fake",'
        f' "options": {{"baseURL": "https://{OPENAI}/v1", "apiKey": "fake"}},'
        ' "models": {"m1": {"name": "m1"}}}}, "permission": {"*": "allow"}}'
    )
    world.manifest("opencode", **manifest(clients, "opencode", OPENAI, home=str(home)))
    said = the_loop(
        world, "opencode", inside(clients, clients.opencode), "run", PROMPT, "--model", "fake/m1"
    )  # fmt: skip
    assert f"done: {SECRET_OF_THE_PAGE}" in said


def test_the_refused_page_stays_refused_for_a_bottle_nobody_approved(world: World) -> None:
    world.manifest("other")
    finished = world.run("other", "curl", "--silent", "--write-out", "%{http_code}", URL)
    assert finished.stdout.endswith("403"), finished.stderr
    assert PAGES in finished.stdout
