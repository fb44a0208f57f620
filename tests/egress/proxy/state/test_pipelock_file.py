"""A decision is live when the operator's own gate knows of it too, and not live while it cannot be told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from botbottle.core.files import write_atomically
from egress.contract.ack import Ack
from egress.contract.snapshot import render_gate, render_routes
from egress.policy.routes import Route
from egress.policy.table import RouteTable, Snapshot
from egress.proxy.config import Config, Gateway
from egress.proxy.process.listeners import Listeners
from egress.proxy.process.worker import build_proxy
from egress.proxy.state.pipelock_file import RELOAD_SECONDS, GateFile


@pytest.fixture
def config() -> Iterator[Config]:
    with TemporaryDirectory(prefix="bottle-") as home:  # short: the path of a socket has a limit
        (Path(home) / "run").mkdir()
        yield Config(Path(home), gateway=Gateway("127.0.0.1", 1))


def in_file(config: Config) -> list[str]:
    return yaml.safe_load((config.run / "pipelock.yaml").read_text())["api_allowlist"]


# --- the file


def test_a_changed_file_is_given_a_moment(config: Config) -> None:
    now = [100.0]
    file = GateFile(config, lambda: now[0])
    assert file.reload_delay() == 0
    file.write({"a.com"})
    assert file.reload_delay() == RELOAD_SECONDS
    now[0] += 1
    assert file.reload_delay() == 0
    file.write({"a.com", "b.com"})
    assert (file.reload_delay(), in_file(config)) == (RELOAD_SECONDS, ["a.com", "b.com"])


def test_who_changes_nothing_waits_only_for_a_change_before(config: Config) -> None:
    now = [100.0]
    file = GateFile(config, lambda: now[0])
    file.write({"a.com"})
    now[0] += RELOAD_SECONDS / 2
    file.write({"a.com"})
    assert file.reload_delay() == RELOAD_SECONDS / 2
    now[0] += RELOAD_SECONDS
    file.write({"a.com"})
    assert file.reload_delay() == 0


def test_an_unchanged_file_is_left_alone_by_the_next_run(config: Config) -> None:
    GateFile(config).write({"a.com"})
    before = (config.run / "pipelock.yaml").stat().st_mtime_ns
    next_run = GateFile(config)
    next_run.write({"a.com"})
    assert (config.run / "pipelock.yaml").stat().st_mtime_ns == before
    assert next_run.reload_delay() == 0


def test_a_file_that_could_not_be_written_is_written_later(config: Config) -> None:
    file = GateFile(config)
    (config.run / "pipelock.yaml").mkdir()
    for _ in range(2):
        with pytest.raises(IsADirectoryError):
            file.write({"a.com"})
        assert file.reload_delay() == 0
    (config.run / "pipelock.yaml").rmdir()
    file.write({"a.com"})
    assert in_file(config) == ["a.com"]


# --- the ack


class Pipelock:
    """Reads its file while somebody waits for that."""

    def __init__(self, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
        self._config = config
        self.allowed: list[str] = []
        self.waits = 0
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        if seconds:
            self.waits += 1
            self.allowed = in_file(self._config)


@pytest.fixture
def pipelock(config: Config, monkeypatch: pytest.MonkeyPatch) -> Pipelock:
    return Pipelock(config, monkeypatch)


class Side:
    """The control plane's: publishes tables, and hears what is live."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._listeners = Listeners(build_proxy(config))
        self._version = 0

    def write(self, slug: str, *hosts: str) -> None:
        directory = self._config.bottles / slug
        directory.mkdir(parents=True, exist_ok=True)
        self._version += 1
        table = RouteTable(tuple(Route(host) for host in hosts), hosts)
        snapshot = Snapshot(slug, self._version, table, datetime.now(UTC).isoformat())
        write_atomically(directory / "gate.yaml", render_gate(snapshot))
        write_atomically(directory / "routes.yaml", render_routes(snapshot))

    async def publish(self, slug: str, *hosts: str) -> Ack:
        self.write(slug, *hosts)
        ack = await self._listeners.refresh(slug)
        assert ack is not None and ack.version == self._version
        return ack

    async def publish_all(self) -> list[Ack]:
        return await self._listeners.refresh_all()

    def close(self) -> None:
        self._listeners.close()


def act(config: Config, story: Any) -> None:
    async def play() -> None:
        side = Side(config)
        try:
            await story(side)
        finally:
            side.close()

    asyncio.run(play())


def test_an_ack_comes_when_the_gate_has_read_its_file(config: Config, pipelock: Pipelock) -> None:
    async def story(side: Side) -> None:
        for number in range(3):
            host = f"{number}.example.com"
            assert (await side.publish("agent-a", host)).problem is None
            assert pipelock.allowed == [host]

    act(config, story)
    assert pipelock.waits == 3


def test_nothing_is_held_where_there_is_no_gate(config: Config, pipelock: Pipelock) -> None:
    async def story(side: Side) -> None:
        await side.publish("agent-a", "a.com")

    act(Config(config.home), story)
    assert pipelock.waits == 0
    assert not (config.run / "pipelock.yaml").exists()


def test_all_bottles_together_are_one_change(config: Config, pipelock: Pipelock) -> None:
    async def story(side: Side) -> None:
        for slug in ("agent-a", "agent-b", "agent-c"):
            side.write(slug, f"{slug}.example.com")
        assert [ack.problem for ack in await side.publish_all()] == [None] * 3

    act(config, story)
    assert pipelock.allowed == [f"agent-{letter}.example.com" for letter in "abc"]
    assert pipelock.waits == 1


def test_a_gate_that_cannot_be_told_is_in_every_ack_until_it_can(config: Config, pipelock: Pipelock) -> None:
    problem = "pipelock.yaml cannot be written: Is a directory. The gate has an older list."

    async def story(side: Side) -> None:
        (config.run / "pipelock.yaml").mkdir()
        assert (await side.publish("agent-a", "a.com")).problem == problem
        assert [ack.problem for ack in await side.publish_all()] == [problem]
        (config.run / "pipelock.yaml").rmdir()
        assert (await side.publish("agent-a", "a.com")).problem is None

    act(config, story)
    assert pipelock.allowed == ["a.com"]


def test_what_is_wrong_with_the_bottle_comes_first(config: Config, pipelock: Pipelock) -> None:
    async def story(side: Side) -> None:
        (config.run / "pipelock.yaml").mkdir()
        side.write("agent-a", "a.com")
        (config.bottles / "agent-a" / "gate.yaml").unlink()
        (ack,) = await side.publish_all()
        assert ack.problem is not None and ack.problem.startswith("gate.yaml is missing.")

    act(config, story)
