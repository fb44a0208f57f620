"""The check at the end of each worker finds what tests leave behind."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from tests.support import leftovers as module
from tests.support.leftovers import leftovers
from tests.support.server import stop


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "A_WHILE", 0)


@pytest.mark.process
def test_a_process_is_found_by_its_working_directory_its_command_and_its_environment(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    for arguments, options in (
        (["sleep", "100"], {"cwd": place}),
        (["sh", "-c", f"sleep 100; : {place}"], {}),
        (["sleep", "100"], {"env": {"BOTTLE_HOME": str(place)}}),
    ):
        process = subprocess.Popen(arguments, start_new_session=True, **options)
        try:
            assert any(f"process {process.pid}" in found for found in leftovers(place))
        finally:
            stop(process)
        assert not any(f"process {process.pid}" in found for found in leftovers(place))


def test_a_listening_socket_of_this_process_is_found(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = f":{listener.getsockname()[1]:04X}"
        assert any(found.endswith(port) for found in leftovers(tmp_path))
    assert not any(found.endswith(port) for found in leftovers(tmp_path))


def test_a_control_group_of_a_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    group = f"/sys/fs/cgroup/{module.LocalBackend(home).tag}agent-a"
    monkeypatch.setattr(module.cgroups, "leftovers", lambda prefix: [group, "/sys/fs/cgroup/bot-bottle-0-b"])
    found = leftovers(tmp_path)
    assert f"control group {group}" in found
    assert not any("bot-bottle-0-b" in one for one in found)
