"""Bottles that are made, removed and made again while their files are being read."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from botbottle.core.files import write_atomically
from egress.contract.snapshot import render_gate, render_routes
from egress.policy.table import RouteTable, Snapshot
from egress.proxy.config import Config
from egress.proxy.process.listeners import Listeners
from egress.proxy.process.worker import build_proxy
from tests.support.proxy_harness import get

SLUG = "agent-x"


@pytest.fixture
def bottle(tmp_path: Path) -> Path:
    directory = tmp_path / "bottles" / SLUG
    directory.mkdir(parents=True)
    (tmp_path / "run").mkdir()
    return directory


def publish(bottle: Path, version: int) -> None:
    snapshot = Snapshot(SLUG, version, RouteTable(), datetime.now(UTC).isoformat())
    write_atomically(bottle / "gate.yaml", render_gate(snapshot))
    write_atomically(bottle / "routes.yaml", render_routes(snapshot))


def unpublish(bottle: Path) -> None:
    for name in ("routes.yaml", "gate.yaml"):
        (bottle / name).unlink()


async def is_served(bottle: Path) -> bool:
    reader, writer = await asyncio.open_unix_connection(str(bottle / "sockets" / "proxy.sock"))
    writer.write(get("http://_egress.local/health", "_egress.local"))
    try:
        return b" 200 " in await reader.readline()
    except ConnectionError:
        return False
    finally:
        writer.close()


async def test_one_that_is_removed_while_it_is_read_makes_room_for_its_successor(bottle: Path) -> None:
    plane = build_proxy(Config(bottle.parent.parent))
    listeners = Listeners(plane)
    publish(bottle, 1)
    await listeners.refresh(SLUG)
    assert await is_served(bottle)
    reading = asyncio.create_task(listeners.refresh(SLUG))
    await asyncio.sleep(0)
    unpublish(bottle)
    assert await listeners.refresh(SLUG) is None
    await reading
    publish(bottle, 2)
    ack = await listeners.refresh(SLUG)
    assert ack is not None and (ack.version, ack.problem) == (2, None)
    assert await is_served(bottle)
    listeners.close()
    await plane.sessions.finish(1)
    plane.bottles.close()
    await listeners.finish()
