"""Attempts to get at addresses that no bottle may reach, by names that an agent or attacker controls."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.attack.conftest import Allowed
from tests.support.proxy_harness import PUBLIC, Answer, Client, Harness, connect, get

pytestmark = pytest.mark.process
HOST = "resolved.example.net"
FORBIDDEN = [
    "127.0.0.3",
    "127.255.255.254",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "::ffff:127.0.0.3",
    "::127.0.0.3",
    "::ffff:0:127.0.0.3",
    "64:ff9b::7f00:3",
    "64:ff9b::5db8:d70e",  # a public one inside
    "64:ff9b:1::7f00:3",
    "2002:7f00:3::1",
    "2001:0:7f00:3::1",
    "fe80::1",
    "fe80::1%lo",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "not an address",
]


@pytest.fixture
def resolved(lab: Harness) -> Harness:
    """Two routes to the same name, with nothing pinned: where they lead is up to the name service."""
    lab.publish("agent-a", [{"host": HOST}, {"host": f"*.{HOST}", "path_allowlist": ["/allowed"]}])
    return lab


@pytest.mark.parametrize("address", FORBIDDEN)
def test_a_name_that_points_there_is_refused(resolved: Harness, address: str) -> None:
    resolved.names(**{HOST: [address], f"x.{HOST}": [address]})
    answers = [
        resolved.client().ask(connect(HOST)),
        resolved.client().ask(get(f"http://{HOST}/x", HOST)),
        resolved.secured(f"x.{HOST}").ask(get("/allowed", f"x.{HOST}")),
    ]
    assert [(answer.status, answer.reason) for answer in answers] == [(403, "forbidden-address")] * 3
    assert all("127.0.0.3" not in str(answer.body) for answer in answers)


@pytest.mark.parametrize(
    "addresses", [["93.184.215.14", "127.0.0.3"], ["127.0.0.3", "93.184.215.14"], ["2606:2800::1", "::1"]]
)
def test_one_forbidden_address_among_others_refuses_them_all(resolved: Harness, addresses: list[str]) -> None:
    resolved.names(**{HOST: addresses})
    assert resolved.client().ask(connect(HOST)).reason == "forbidden-address"


@pytest.mark.parametrize("answers", [{}, {HOST: []}])
def test_a_name_without_address_is_told_so(resolved: Harness, answers: dict[str, list[str]]) -> None:
    resolved.names(**answers)
    answer = resolved.client().ask(connect(HOST))
    assert (answer.status, answer.reason) == (502, "unresolvable")


def test_a_name_is_looked_up_once_for_a_connection(resolved: Harness) -> None:
    resolved.names(**{HOST: ["127.0.0.3"]})
    resolved.client().ask(connect(HOST))
    assert resolved.asked_names() == [HOST]


@pytest.mark.parametrize(
    "host", ["denied.example.org", "exfiltrated-data.attacker.example", "api.example.com.evil.org"]
)
def test_a_denied_name_is_never_looked_up(lab: Harness, host: str) -> None:
    lab.client().ask(get(f"http://{host}/x", host))
    lab.client().ask(connect(host, 8443))
    lab.secured(host).ask(get("/x", host))
    lab.client().ask(get("http://api.example.com/allowed", host))
    assert lab.asked_names() == []


def test_a_pinned_name_is_never_looked_up(lab: Harness) -> None:
    lab.names(**{"api.example.com": ["127.0.0.3"]})
    assert lab.client().ask(get("http://api.example.com/allowed", "api.example.com")).status == 200
    assert (lab.requests[0].origin, lab.asked_names()) == ("api.example.com", [])


# --- names that lead elsewhere from one moment to the next

HERE, ELSEWHERE = PUBLIC
WAYS = {
    "plain": (80, {"methods": ["GET"]}),
    "fast path": (443, {"methods": ["GET"]}),
    "task": (443, {"dlp": {"in": True}}),
    "tunnel": (443, {}),
}


class Asking:
    """Requests of one client on one of the ways, with nothing pinned, to a name that was never asked for."""

    def __init__(self, lab: Harness, allowed: Allowed, way: str) -> None:
        self.port, fields = WAYS[way]
        self.host = f"{uuid4().hex}.{HOST}"
        allowed[self.host] = ("/allowed", "/no-answer", "/until-close")
        self._lab = lab
        self._client: Client | None = None
        lab.publish("agent-a", [{"host": self.host, **fields}])

    def leads_to(self, *answers: list[str]) -> None:
        self._lab.names(**{self.host: list(answers)})

    def ask(self, path: str) -> Answer:
        start = f"http://{self.host}" if self.port == 80 else ""
        if self._client is None:
            client = self._lab.client()
            if self.port == 443:
                answer = client.ask(connect(self.host))
                if answer.status != 200:
                    return answer
                client = self._lab.wrap(client, self.host)
            self._client = client
        answer = self._client.ask(get(f"{start}{path}", self.host))
        if answer.headers.get("connection") == "close":
            self._client = None
        return answer

    @property
    def dialled(self) -> list[str]:
        """In order. The port is the same for all."""
        found = [each.rpartition(":") for each in self._lab.dialled()]
        assert {int(port) for _, _, port in found} <= {self.port}
        return [address for address, _, _ in found]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("answers", "dialled"),
    [
        ([[HERE], ["127.0.0.3"]], [HERE]),
        ([[HERE], ["127.0.0.3"], [ELSEWHERE]], [HERE]),
        ([["127.0.0.3"], [HERE]], []),
        ([["169.254.169.254", HERE], [HERE]], []),
        ([[HERE, "127.0.0.3"], [HERE]], []),
    ],
)
def test_what_was_checked_is_dialled_whatever_the_name_says_a_moment_later(
    lab: Harness, allowed: Allowed, way: str, answers: list[list[str]], dialled: list[str]
) -> None:
    asking = Asking(lab, allowed, way)
    asking.leads_to(*answers)
    answer = asking.ask("/allowed")
    assert (answer.status, answer.reason) == ((200, "") if dialled else (403, "forbidden-address"))
    assert (asking.dialled, lab.asked_names()) == (dialled, [asking.host])


@pytest.mark.parametrize("way", [way for way in WAYS if way != "tunnel"])
@pytest.mark.parametrize("ending", ["/no-answer", "/until-close"])
def test_a_name_is_checked_again_for_the_next_connection(
    lab: Harness, allowed: Allowed, way: str, ending: str
) -> None:
    asking = Asking(lab, allowed, way)
    asking.leads_to([HERE])
    assert [asking.ask("/allowed").status for _ in range(2)] == [200, 200]
    asking.leads_to(["127.0.0.3"])
    assert asking.ask("/allowed").status == 200  # on the connection to the address that was checked
    answer = asking.ask(ending)  # with it this connection ends: a request without an answer is sent again
    if ending == "/until-close":
        assert answer.status == 200
        answer = asking.ask("/allowed")
    assert (answer.status, answer.reason) == (403, "forbidden-address")
    assert asking.dialled == [HERE]
    asking.leads_to([ELSEWHERE])
    assert asking.ask("/allowed").status == 200
    assert asking.dialled == [HERE, ELSEWHERE]
