"""The suites of deciding, waiting, merging and the proxy's records again, on real PostgreSQL and Redis."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support import ROOT
from tests.support.server import KEPT_VARIABLES

PLUGINS = ["-p", "no:cacheprovider", "-p", "tests.services.with_database"]
SUITES = ["tests/supervise", "tests/waiting", "tests/api", "tests/commands", "tests/egress_control"]


@pytest.mark.services
def test_deciding_waiting_and_merging_hold_on_postgresql_and_redis(postgres: str, redis: str) -> None:
    suites = [suite for suite in SUITES if (ROOT / suite).is_dir()]
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *PLUGINS, "-m", "not process", *suites],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT), "DATABASE_URL": postgres, "REDIS_URL": redis},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-20_000:] + finished.stderr[-5_000:]
    passed = re.search(r"(\d+) passed", finished.stdout)
    assert passed is not None
    assert int(passed[1]) > 300
    assert "skipped" not in finished.stdout
