"""One process does the work of a leader thread, and a lock that cannot be used at all is reported."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from botbottle.leader_thread import LeaderThread
from tests.support.timeouts import wait_until


class Job(LeaderThread):
    name = "job"
    pause_seconds = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.done = Event()

    def work(self) -> bool:
        self.done.set()
        return False


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.BOTTLE_HOME = tmp_path
    return tmp_path


def test_one_leads_and_the_next_follows_its_release() -> None:
    first, second = Job(), Job()
    assert first.acquire()
    assert first.acquire(), "it stays the leader"
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()


def test_a_lock_that_cannot_be_used_is_logged_and_tried_again(home: Path, caplog: Any) -> None:
    (home / "run" / "job.lock").mkdir(parents=True)
    job = Job()
    job.start()
    try:
        wait_until(lambda: "A round of job failed" in caplog.text)
        assert not job.done.is_set()
        (home / "run" / "job.lock").rmdir()
        assert job.done.wait(10)
    finally:
        job.stop()
