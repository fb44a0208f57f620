"""For the real MCP clients: the installed programs, one island with a running server, a fresh home."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.isolated_clients import HERE, PROJECT, UNSHARE, Clients, Island
from tests.support.requirements import require


@pytest.fixture(scope="session")
def clients() -> Clients:
    folder = Path(os.environ.get("BOTTLE_NODE_DIR") or PROJECT / ".cache" / "clients")
    stamp = folder / "node_modules" / ".installed-lock.json"
    current = stamp.exists() and stamp.read_bytes() == (HERE / "package-lock.json").read_bytes()
    clients = Clients(folder / "node_modules")
    ready = current and Path(clients.node).exists()
    require(ready, "the pinned set of MCP clients", "Run tests/clients/install (Linux on x86-64 or ARM64).")
    return clients


@pytest.fixture(scope="session")
def island(clients: Clients, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Island]:
    unshare = shutil.which("unshare")
    probe = unshare and subprocess.run([*UNSHARE, "true"], capture_output=True, check=False)
    require(
        probe and probe.returncode == 0,
        "a network namespace of our own (unshare)",
        "Install util-linux and allow unprivileged user namespaces.",
    )
    island = Island(tmp_path_factory.mktemp("island"))
    yield island
    island.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path
