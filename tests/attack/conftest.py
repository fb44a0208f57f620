"""Every attack ends with the same questions to the origins, whatever the proxy answered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.proxy_harness import SECRET, USUAL_ROUTES, Harness, pinned, running_lab

AGENT_CREDENTIAL = "agents-own-credential"
ALLOWED = {
    "api.example.com": ("/allowed", "/status", "/big"),
    "secret.example.com": ("/allowed",),
    "bare.example.com": ("",),
}


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    home = tmp_path_factory.mktemp("attacked") / "h"
    with running_lab(home, EGRESS_HEAD_SECONDS="1", EGRESS_HANDSHAKE_SECONDS="1") as lab:
        yield lab


Allowed = dict[str, tuple[str, ...]]  # paths, by host


@pytest.fixture
def allowed() -> Allowed:
    """What may reach an origin. A test that publishes a wider route adds what it is about, and no more."""
    return dict(ALLOWED)


@pytest.fixture
def lab(attacked: Harness, allowed: Allowed) -> Iterator[Harness]:
    attacked.publish("agent-a", USUAL_ROUTES)
    attacked.publish("agent-b", [pinned("other.example.com")])
    attacked.reset()
    yield attacked
    check_invariants(attacked, allowed)
    attacked.reset()


def check_invariants(lab: Harness, allowed: Allowed) -> None:
    nothing_reached_the_wrong_place(lab, allowed)
    the_secret_only_went_where_it_belongs(lab)
    assert SECRET.encode() not in lab.received(), "the secret came back"
    assert SECRET not in lab.log(), "the secret is in the log"
    assert SECRET not in str(lab.records()), "the secret is in a record"
    assert all(name.endswith("resolved.example.net") for name in lab.asked_names()), lab.asked_names()
    assert lab.process.poll() is None, lab.log()
    assert "Traceback" not in lab.log(), lab.log()


def nothing_reached_the_wrong_place(lab: Harness, allowed: Allowed) -> None:
    for seen in lab.requests:
        hosts, path = seen.values("host"), seen.target.partition("?")[0]
        assert len(hosts) == 1 and hosts[0] in allowed, f"{seen.method} {path} for {hosts}"
        assert f".{hosts[0]}".endswith(f".{seen.origin}"), f"{hosts[0]}{path} reached {seen.origin}"
        assert any(f"{path}/".startswith(f"{prefix}/") for prefix in allowed[hosts[0]]), path
    for connection in lab.origins.connections:
        assert connection.origin != "other.example.com", bytes(connection.raw)
        cut_short = "peer closed connection" in connection.broken
        assert cut_short or not connection.broken, connection


def the_secret_only_went_where_it_belongs(lab: Harness) -> None:
    for connection in lab.origins.connections:
        holds = SECRET.encode() in connection.raw
        assert not holds or (connection.origin == "secret.example.com" and connection.tls)
        if connection.origin == "secret.example.com":
            assert AGENT_CREDENTIAL.encode() not in connection.raw
