"""Attempts to get at the host itself, and so at the control plane, by a public address that it has.

The data plane runs in a network namespace of its own, to which such an address is given.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network

import pytest

from tests.support.proxy_harness import PUBLIC, Answer, Harness, connect, get, running_lab
from tests.support.requirements import require
from tests.support.timeouts import wait_until

pytestmark = pytest.mark.process
HOST = "resolved.example.net"
ALONE = ("unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
V6 = "2606:2800:21f:cb07::1"
OWN = [(PUBLIC[0], PUBLIC[0]), (V6, V6), (PUBLIC[0], "64:ff9b::5db8:d70e")]  # and what a name says of it


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    tools = all(map(shutil.which, ("unshare", "nsenter", "ip")))
    alone = tools and subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0
    hint = "apt-get install util-linux iproute2, and allow unprivileged user namespaces"
    require(alone, "a network namespace of our own", hint)
    with running_lab(tmp_path_factory.mktemp("own") / "h", inside=ALONE, EGRESS_NAT64="1") as lab:
        yield lab


@contextmanager
def given_to_the_host(lab: Harness, address: str) -> Iterator[None]:
    alone, family = str(ip_network(address)), "-6" if ":" in address else "-4"
    served = (family, "route", "show", "table", "local", address)
    _ip(lab, "address", "add", alone, "dev", "lo")
    try:
        # The kernel takes a new IPv6 address into service a moment after it has said yes to it.
        wait_until(lambda: _ip(lab, *served), what="an address in service")
        yield
    finally:
        _ip(lab, "address", "del", alone, "dev", "lo")


def _ip(lab: Harness, *words: str) -> str:
    """What `ip` says where the data plane runs."""
    there = ["nsenter", "--preserve-credentials", "--user", "--net", "--target", str(lab.process.pid)]
    return subprocess.run([*there, "ip", *words], check=True, capture_output=True, text=True).stdout


def ask_in_every_way(lab: Harness) -> list[Answer]:
    return [
        lab.client().ask(connect(HOST)),
        lab.client().ask(get(f"http://{HOST}/x", HOST)),
        lab.secured(f"x.{HOST}").ask(get("/allowed", f"x.{HOST}")),
    ]


@pytest.mark.parametrize(("address", "answer"), OWN)
def test_a_public_address_is_refused_while_it_is_the_hosts_own(
    lab: Harness, address: str, answer: str
) -> None:
    lab.publish("agent-a", [{"host": HOST}, {"host": f"*.{HOST}", "path_allowlist": ["/allowed"]}])
    lab.names(**{HOST: [answer], f"x.{HOST}": [answer]})
    with given_to_the_host(lab, address):
        refused = ask_in_every_way(lab)
        assert [(each.status, each.reason) for each in refused] == [(403, "forbidden-address")] * 3
        assert all("an address of this host" in each.json["message"] for each in refused)
        assert lab.dialled() == []
    # Somewhere else it is an address like any other. Here, nobody has it.
    assert [each.reason for each in ask_in_every_way(lab)] == ["upstream-refused"] * 3
    assert {each.rpartition(":")[0] for each in lab.dialled()} == {answer}
