"""The supervisor of child processes: what it says of one that has ended."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from botbottle.core.processes import Child
from tests.support.timeouts import wait_until

ENDED = f"import os; os.kill(os.getpid(), {int(signal.SIGTERM)})"


@pytest.mark.parametrize(
    ("program", "level", "said"),
    [
        ("pass", "INFO", "web-1 was stopped; starting it again"),
        (ENDED, "INFO", "web-1 was stopped; starting it again"),
        ("raise SystemExit(3)", "ERROR", "web-1 ended with code 3; restarting"),
    ],
    ids=["stopped", "stopped before it served", "failed"],
)
def test_a_stopped_child_is_not_reported_as_a_failure(
    program: str, level: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    child = Child("web-1", [sys.executable, "-I", "-c", program], {}, [], serves=lambda: True)
    child.start()
    process = child.process
    assert process is not None
    wait_until(lambda: process.poll() is not None)
    with caplog.at_level("INFO"):
        child.restart_if_ended()
    [record] = caplog.records
    assert (record.levelname, record.getMessage().startswith(said)) == (level, True)
    assert isinstance(child.process, subprocess.Popen)
    child.process.kill()
    child.process.wait()
