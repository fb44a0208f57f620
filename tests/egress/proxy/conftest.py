from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from egress.dlp.scanner import Scanner
from egress.proxy.tls.authority import Authority
from egress.proxy.tls.session import upstream_context
from tests.support.proxy_harness import SECRET, USUAL_ROUTES, Harness, pinned, running_lab


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with running_lab(tmp_path_factory.mktemp("lab") / "h") as lab:
        yield lab


@pytest.fixture
def lab(shared_lab: Harness) -> Iterator[Harness]:
    """The shared data plane with the usual tables and nothing seen yet."""
    shared_lab.publish("agent-a", USUAL_ROUTES)
    shared_lab.publish("agent-b", [pinned("other.example.com")])
    shared_lab.reset()
    yield shared_lab
    shared_lab.reset()
    assert shared_lab.process.poll() is None, shared_lab.log()
    assert "Traceback" not in shared_lab.log(), shared_lab.log()


@pytest.fixture
def canary_stays(lab: Harness) -> Iterator[None]:
    """In no common encoding does the secret reach another host than its own, come back, or get noted."""
    yield
    canary = Scanner([SECRET]).literals
    for connection in lab.origins.connections:
        if connection.origin != "secret.example.com":
            assert canary.first(bytes(connection.raw)) is None, connection
    assert canary.first(lab.received()) is None
    assert canary.first(lab.log().encode()) is None
    assert canary.first(json.dumps(lab.records()).encode()) is None


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "agent-a")


@pytest.fixture
def trusting(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))


@pytest.fixture
def trust(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    return upstream_context(tmp_path / "ca.pem")
