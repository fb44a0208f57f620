"""`make demo`, unattended: the whole loop with a real bottle, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from supervise.management.commands import demo
from tests.support import ROOT
from tests.support.requirements import require
from tests.support.server import KEPT_VARIABLES

pytestmark = pytest.mark.process
STEPS = ("→ 403", "egress-block", "Open http://127.0.0.1:", "approved, live as table version", "→ 200")
STEPS_IN_JSON = (
    "serving", "tried", "refused", "waiting", "approving", "answered", "tried again", "ended",
)  # fmt: skip


@pytest.fixture
def settings_of_the_operator(tmp_path: Path) -> dict[str, str]:
    """None of them is the demo's: there is no such database, and no bottle starts from this manifest."""
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "demo.yaml").write_text("backend: docker\nimage: somebody-elses:1\n")
    return {
        "DATABASE_URL": "postgres://operator@127.0.0.1:1/production",
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "BOTTLE_MANIFESTS": str(manifests),
        "CONSOLE_BIND": "192.0.2.1",
        "EGRESS_PROXY": "0",
    }


def test_the_demo_ends_with_the_agent_getting_through_whatever_the_operators_settings_are(
    tmp_path: Path, settings_of_the_operator: dict[str, str]
) -> None:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    home = tmp_path / "home"
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    own = {"HOME": str(tmp_path), "BOTTLE_HOME": str(home)}
    finished = subprocess.run(
        [sys.executable, "manage.py", "demo", "--auto", "--json"], cwd=ROOT, check=False, timeout=180,
        env=kept | settings_of_the_operator | own, capture_output=True, text=True,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    lines = [json.loads(line) for line in finished.stdout.splitlines()]
    assert tuple(line["step"] for line in lines) == STEPS_IN_JSON
    assert lines[-2]["status"] == 200
    assert lines[-1]["succeeded"]
    people_read_the_same(lines)
    assert not (home / "demo").exists()
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(home) not in running


def people_read_the_same(lines: list[dict[str, Any]]) -> None:
    """What the demo writes about these steps without --json."""
    output = StringIO()
    command = demo.Command(stdout=output)
    for line in lines:
        command._print(line)
    said = output.getvalue()
    for step in STEPS:
        assert step in said, said
        said = said[said.index(step) :]


def test_the_demo_approves_only_what_its_own_agent_asked_for() -> None:
    ours = {"id": "3", "bottle": "demo", "host": demo.HOST}
    others = [
        {"id": "1", "bottle": "production", "host": demo.HOST},
        {"id": "2", "bottle": "demo", "host": "evil.example.com"},
        {"id": "4", "bottle": "demo", "host": None},
    ]
    assert demo.of_the_demo([*others, ours]) == "3"
    assert demo.of_the_demo(others) is None
