"""A running bot-bottle whose internet is a few TLS servers on loopback, and bottles that live in it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from botbottle.demo.internet import Site, small_internet
from tests.clients.conftest import clients  # noqa: F401 - a fixture
from tests.support import ROOT
from tests.support.package_site import INDEX, PackageSite
from tests.support.requirements import require
from tests.support.scripted_model import PAGES, AnthropicModel, OpenAiModel, Pages
from tests.support.server import RunningServer, running_server
from tests.support.timeouts import wait_until

ANTHROPIC, OPENAI = "api.anthropic.com", "models.example.com"
SITES: Mapping[str, type[Site]] = {
    PAGES: Pages,
    ANTHROPIC: AnthropicModel,
    OPENAI: OpenAiModel,
    INDEX: PackageSite,
}


@dataclass
class World:
    server: RunningServer
    root: Path

    def manifest(self, slug: str, **keys: Any) -> None:
        directory = self.server.home / "bottles"
        directory.mkdir(exist_ok=True)
        workspace = self.root / f"{slug}-workspace"
        workspace.mkdir(exist_ok=True)
        content = {"backend": "local", "workspace": {"path": str(workspace)}, **keys}
        (directory / f"{slug}.yaml").write_text(yaml.safe_dump(content))

    def run(self, slug: str, *command: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._line(slug, *command), cwd=ROOT, env=self.server.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip

    def begin(self, slug: str, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._line(slug, *command), cwd=ROOT, env=self.server.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def approve_when_asked(self, slug: str) -> dict[str, Any]:
        """The first pending proposal of the bottle, approved."""
        wait_until(lambda: self.server.pending(slug), what="the agent's ask")
        asked = json.loads(self.server.manage("proposals", "list", "--bottle", slug, "--json"))[0]
        self.server.manage("proposals", "approve", asked["id"], "--note", "Fine.")
        return dict(asked)

    def _line(self, slug: str, *command: str) -> list[str]:
        return [sys.executable, "manage.py", "bottle", "run", slug, "--", *command]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    root = tmp_path_factory.mktemp("world")
    with (
        small_internet(root, SITES) as internet,
        running_server(
            root / "home",
            EGRESS_UPSTREAM_PROXY=internet.proxy_url,
            EGRESS_UPSTREAM_CA=str(internet.authority),
            SUPERVISE_RESPONSE_TIMEOUT_SECONDS="120",
        ) as server,
    ):
        yield World(server, root)
