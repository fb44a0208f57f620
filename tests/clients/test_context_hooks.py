"""The real agents start with what bot-bottle tells them: the shipped hooks, a scripted model, no network."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from botbottle.core.plan_types import HOME_INSIDE
from botbottle.provision import context_hooks
from tests.support import PROGRAMS
from tests.support.isolated_clients import Clients, Island

pytestmark = pytest.mark.clients
BEGIN, END = (
    "# bot-bottle: session context of bottle island, standard",
    "# bot-bottle: end of session context",
)
DEAD_PROXY = "http://127.0.0.1:9"  # in a bottle the proxy is set; this traffic must not go there
PROXIED = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), DEAD_PROXY),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1"),
}


def provision(home: Path, kind: str) -> None:
    for file in context_hooks.files(kind):
        path = home / Path(file.path).relative_to(HOME_INSIDE)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.content)


def turn(island: Island, home: Path, *command: str, bridged: bool, **env: str) -> list[str]:
    """What the model was sent in one turn of the agent."""
    path = island.server_home / "bottles" / "island" / "sockets" / "agent.sock"
    finished = island.run(
        *(sys.executable, str(PROGRAMS / "agent_turn.py"), str(path) if bridged else "", *command),
        home=home,
        env={**PROXIED, **env},
    )
    assert finished.code == 0, finished.said
    sent: list[str] = json.loads(finished.out.splitlines()[-1])
    return sent


def claude(island: Island, clients: Clients, home: Path, *, bridged: bool) -> list[str]:
    provision(home, "claude")
    settings = context_hooks.claude_settings('{"hooks": {"SessionStart": []}}')
    (home / ".claude" / "settings.json").write_text(settings.replace(HOME_INSIDE, str(home)))
    wrapped = 'ANTHROPIC_BASE_URL=http://127.0.0.1:$0 exec "$@"'
    return turn(
        *(island, home, "sh", "-c", wrapped, "MODEL", clients.claude, "-p", "Say: Done."),
        bridged=bridged,
        ANTHROPIC_API_KEY="fake",
    )


def opencode(island: Island, clients: Clients, home: Path, *, bridged: bool) -> list[str]:
    provision(home, "opencode")
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": "http://127.0.0.1:MODEL/v1", "apiKey": "fake"},
        "models": {"m1": {}},
    }
    settings = json.dumps({"autoupdate": False, "provider": {"fake": provider}, "share": "disabled"})
    write = 'printf %s "$0" > opencode.json; exec "$@"'
    return turn(
        *(
            island,
            home,
            "sh",
            "-c",
            write,
            settings,
            clients.opencode,
            "run",
            "Say: Done.",
            "--model",
            "fake/m1",
        ),
        bridged=bridged,
    )


AGENTS = pytest.mark.parametrize("agent", [claude, opencode])


@AGENTS
def test_the_model_is_sent_the_session_context(island: Island, clients: Clients, home: Path, agent) -> None:
    before = len(fetches(island))
    bodies = [body for body in agent(island, clients, home, bridged=True) if BEGIN in body]
    assert bodies and all(END in body for body in bodies)
    assert [one["status"] for one in fetches(island)[before:]] == [200]  # once, however many requests it made


def fetches(island: Island) -> list[dict[str, Any]]:
    return [one for one in island.requests() if one["path"] == "/session-context"]


@AGENTS
def test_without_a_server_the_model_is_told_so(island: Island, clients: Clients, home: Path, agent) -> None:
    sent = agent(island, clients, home, bridged=False)
    assert any("the session context cannot be had now" in body for body in sent)
