"""`make demo`, unattended: the whole loop with a real bottle, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import require
from tests.servers import KEPT_VARIABLES, ROOT

pytestmark = pytest.mark.process
STEPS = ("→ 403", "egress-block", "Open http://127.0.0.1:", "approved, live as table version", "→ 200")


def test_the_demo_ends_with_the_agent_getting_through(tmp_path: Path) -> None:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    home = tmp_path / "home"
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    finished = subprocess.run(
        [sys.executable, "manage.py", "demo", "--auto"], cwd=ROOT, check=False, timeout=180,
        env={**kept, "HOME": str(tmp_path), "BOTTLE_HOME": str(home)}, capture_output=True, text=True,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    said = finished.stdout
    for step in (
        "→ 403",
        "egress-block",
        "Open http://127.0.0.1:",
        "approved, live as table version",
        "→ 200",
    ):
        assert step in said, said
        said = said[said.index(step) :]
    assert not (home / "demo").exists()
    assert (
        str(home)
        not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    )
