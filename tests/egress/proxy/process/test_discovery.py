"""Where the proxy says that it is, also on a disk without room."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from egress.contract import sharding
from egress.proxy.config import Config
from tests.support.full_disk import without_new_files


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "run").mkdir()
    return Config(home=tmp_path, processes=3)


def test_it_tells_its_port_and_how_many_processes_it_has(config: Config) -> None:
    config.publish(9101)
    assert json.loads(config.discovery.read_text()) == {"port": 9101, "processes": 3}
    assert sharding.running(config.run, 1) == 3


def test_what_a_killed_run_told_counts_no_more(config: Config) -> None:
    config.publish(9101)
    config.forget_the_killed()
    assert config.discovery.read_text().strip() == ""
    assert sharding.running(config.run, 1) == 1


def test_a_killed_run_leaves_room_for_what_the_next_one_tells(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.publish(9101)
    config.forget_the_killed()
    without_new_files(monkeypatch)
    config.publish(9102)
    assert json.loads(config.discovery.read_text()) == {"port": 9102, "processes": 3}


def test_without_room_it_serves_and_says_in_the_log_that_nobody_is_told(
    config: Config, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    config.forget_the_killed()  # there was none
    without_new_files(monkeypatch)
    with caplog.at_level(logging.ERROR):
        config.publish(9101)
    assert "egress.json cannot be written: No space left on device" in caplog.text
