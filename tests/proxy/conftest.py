from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.proxy.lab import USUAL_ROUTES, Lab, pinned, running_lab


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab") / "h") as lab:
        yield lab


@pytest.fixture
def lab(shared_lab: Lab) -> Iterator[Lab]:
    """The shared data plane with the usual tables and nothing seen yet."""
    shared_lab.publish("agent-a", USUAL_ROUTES)
    shared_lab.publish("agent-b", [pinned("other.example.com")])
    shared_lab.reset()
    yield shared_lab
    shared_lab.reset()
    assert shared_lab.process.poll() is None, shared_lab.log()
    assert "Traceback" not in shared_lab.log(), shared_lab.log()
