"""One running bot-bottle per worker for managed servers in local bottles, and one for those in containers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from botbottle.demo.internet import small_internet
from botbottle.mcp_servers.host import lives
from tests.support.bottle_cli import Bottles
from tests.support.docker_engine import Engine, engine
from tests.support.mcp_server_site import INDEX, PackageIndex
from tests.support.requirements import require
from tests.support.server import running_server
from tests.support.timeouts import wait_until

__all__ = ["engine"]


@pytest.fixture(scope="session")
def bottles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bottles]:
    """Local ones. The only host that they could reach is a package index."""
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    root = tmp_path_factory.mktemp("managed")
    PackageIndex.make(root)
    with (
        small_internet(root, {INDEX: PackageIndex}) as internet,
        _running(
            root / "h",
            SUPERVISE_RESPONSE_TIMEOUT_SECONDS="60",
            EGRESS_UPSTREAM_PROXY=internet.proxy_url,
            EGRESS_UPSTREAM_CA=str(internet.authority),
        ) as made,
    ):
        yield made


@pytest.fixture(scope="session")
def boxes(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bottles]:
    """Those in containers."""
    with _running(tmp_path_factory.mktemp("boxes") / "h", DOCKER_HOST=engine.url) as made:
        yield made


@contextmanager
def _running(home: Path, **variables: str) -> Iterator[Bottles]:
    with running_server(home, **variables) as server:
        wait_until(lambda: "console  http://" in server.log(), what="the start")
        made = Bottles(server)
        yield made
        for line in json.loads(made.ok("ps", "--json")):
            made.ok("delete", line["slug"])
        # They look every few seconds. One that finds no engine any more cannot tell that its bottle is gone.
        runs = list(home.glob("bottles/*/run"))
        wait_until(lambda: not any(lives(run) for run in runs), what="the end of the servers' processes")
