"""What an operator can set to have more refused: unknown hosts at CONNECT, and addresses of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from egress.policy.asks import parse_egress_ask, parse_gate_ask
from tests.support.proxy_harness import (
    PUBLIC,
    USUAL_ROUTES,
    Answer,
    Harness,
    connect,
    get,
    pinned,
    running_lab,
)

pytestmark = pytest.mark.process
HOST = "resolved.example.net"
OPEN, FORBIDDEN = PUBLIC
FORBIDDEN_IN_A_NETWORK = "2606:2800:220:1::5"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with running_lab(
        tmp_path_factory.mktemp("stricter") / "h",
        EGRESS_REFUSE_AT_CONNECT="1",
        EGRESS_FORBIDDEN_NETWORKS=f"{FORBIDDEN},2606:2800:220::/48",
        EGRESS_NAT64="1",
    ) as lab:
        yield lab


@pytest.fixture
def lab(shared: Harness) -> Iterator[Harness]:
    shared.publish("agent-a", USUAL_ROUTES)
    shared.reset()
    yield shared
    shared.reset()
    assert shared.process.poll() is None, shared.log()
    assert "Traceback" not in shared.log(), shared.log()


# --- EGRESS_REFUSE_AT_CONNECT


def test_an_unknown_host_is_refused_at_connect_with_what_to_ask_for(lab: Harness) -> None:
    before = len(lab.records())
    answer = lab.client().ask(connect("new.example.org"))
    assert (answer.status, answer.reason) == (403, "no-route")
    assert answer.json["ask"]["tool"] == "egress-block"
    arguments = answer.json["ask"]["arguments"]
    assert arguments.pop("justification").startswith("CONNECT")
    assert parse_egress_ask(arguments) == arguments == {"host": "new.example.org"}
    [record] = lab.records()[before:]
    assert (record["method"], record["verdict"], record["status"]) == ("CONNECT", "refused", 403)
    assert lab.asked_names() == []


def test_why_says_so_too(lab: Harness) -> None:
    asked = get("http://_egress.local/why?url=https://new.example.org/repos/x", "_egress.local")
    told, real = lab.client().ask(asked).json, lab.client().ask(connect("new.example.org")).json
    assert (told["allowed"], told["reason"], told["ask"]) == (False, real["reason"], real["ask"])


def test_a_host_missing_at_the_gate_is_refused_at_connect_too(lab: Harness) -> None:
    lab.publish("agent-a", [pinned("api.example.com")], gate=[])
    answer = lab.client().ask(connect("api.example.com"))
    assert (answer.status, answer.reason) == (403, "gate")
    assert answer.json["ask"]["tool"] == "pipelock-block"
    arguments = answer.json["ask"]["arguments"]
    assert arguments.pop("justification").startswith("CONNECT")
    assert parse_gate_ask(arguments)["host"] == "api.example.com"
    assert lab.requests == []


@pytest.mark.parametrize("host", ["api.example.com", "bare.example.com"])
def test_a_known_host_is_opened_as_ever(lab: Harness, host: str) -> None:
    assert lab.secured(host).ask(get("/allowed", host)).status == 200


def test_a_path_is_still_refused_inside(lab: Harness) -> None:
    answer = lab.secured("api.example.com").ask(get("/forbidden", "api.example.com"))
    assert (answer.status, answer.reason) == (403, "path")


# --- EGRESS_FORBIDDEN_NETWORKS


def answers(lab: Harness, *addresses: str) -> list[Answer]:
    """On all three ways, to a name that leads there."""
    host = f"x.{HOST}"
    lab.publish("agent-a", [{"host": HOST}, {"host": f"*.{HOST}", "path_allowlist": ["/allowed"]}])
    lab.names(**{HOST: list(addresses), host: list(addresses)})
    return [
        lab.client().ask(connect(HOST)),
        lab.client().ask(get(f"http://{HOST}/x", HOST)),
        lab.secured(host).ask(get("/allowed", host)),
    ]


@pytest.mark.parametrize(
    "addresses",
    [
        (FORBIDDEN,),
        (FORBIDDEN_IN_A_NETWORK,),
        (OPEN, FORBIDDEN),
        (f"::ffff:{FORBIDDEN}",),
        (f"64:ff9b::{FORBIDDEN}",),
    ],
)
def test_a_name_that_leads_to_a_forbidden_network_is_refused(
    lab: Harness, addresses: tuple[str, ...]
) -> None:
    found = answers(lab, *addresses)
    assert [(each.status, each.reason) for each in found] == [(403, "forbidden-address")] * 3
    assert lab.dialled() == []


def test_other_addresses_are_dialled_as_ever(lab: Harness) -> None:
    assert [each.status for each in answers(lab, OPEN)] == [200] * 3
    assert {each.rpartition(":")[0] for each in lab.dialled()} == {OPEN}
