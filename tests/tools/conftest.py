from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.requirements import require
from tests.support.tool_env import HERE, NODE_PACKAGES, Bottle, Workshop, running_workshop


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with running_workshop(tmp_path_factory.mktemp("tools") / "h") as workshop:
        yield workshop
        assert workshop.lab.process.poll() is None, workshop.lab.log()
        assert "Traceback" not in workshop.lab.log(), workshop.lab.log()
        for upstream in workshop.upstreams.values():
            assert upstream.errors == []


@pytest.fixture
def bottle(workshop: Workshop, tmp_path: Path) -> Bottle:
    for upstream in workshop.upstreams.values():
        upstream.seen.clear()
    return Bottle(workshop, tmp_path)


@pytest.fixture(scope="session")
def node() -> Path:
    """A Node new enough for fetch to know about proxies, beside the packages that the programs need."""
    stamp = NODE_PACKAGES / "node_modules" / ".installed-lock.json"
    current = stamp.exists() and stamp.read_bytes() == (HERE / "package-lock.json").read_bytes()
    require(current, "the pinned set of Node packages", "Run tests/tools/install.")
    return next(NODE_PACKAGES.glob("node_modules/node-linux-*/bin/node"))
