"""Who is who and what goes where, again with two processes as they are shipped.

A bottle's own socket is with one of them, as if there were no other. What comes over TCP may be accepted by
the wrong one, which reads the first request and hands the connection over with all it has got.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.attack.test_authority import ADDRESSES, HOSTS, STRANGERS, hello
from tests.attack.test_identity import (  # noqa: F401  (they are collected here once more)
    credentials,
    test_a_changed_token_ends_what_was_opened_with_the_old_one,
    test_a_connection_stays_with_the_bottle_it_began_with,
    test_on_a_socket_nothing_that_is_sent_changes_who_it_is,
    test_one_bottles_routes_are_not_anothers,
    test_tcp_needs_the_bottles_own_token,
    test_two_sets_of_credentials_are_refused,
)
from tests.support.proxy_harness import (
    TOKENS,
    Client,
    Harness,
    connect,
    eventually,
    get,
    request,
    running_lab,
)

pytestmark = pytest.mark.process
MOST = 20
TOGETHER = 8  # as many as wait for a process without being told to


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    home = tmp_path_factory.mktemp("two") / "h"
    limits = {
        "EGRESS_HEAD_SECONDS": "1",
        "EGRESS_HANDSHAKE_SECONDS": "1",
        "EGRESS_MAX_CONNECTIONS": str(MOST),
    }
    with running_lab(home, EGRESS_PROCESSES="2", **limits) as lab:
        yield lab


def signed(message: bytes, slug: str = "agent-a", token: str | None = None) -> bytes:
    header = credentials(slug, TOKENS[slug] if token is None else token).encode()
    return message.replace(b"\r\n\r\n", b"\r\n" + header + b"\r\n\r\n", 1)


def handed_over(lab: Harness, messages: Sequence[bytes]) -> Iterator[Client]:
    """One for each message of agent-a, sent while only the process of agent-b is there to read it.

    Each is closed when the next is asked for.
    """
    health = signed(get("http://_egress.local/health", "_egress.local"), "agent-b")
    for start in range(0, len(messages), TOGETHER):
        clients = []
        with lab.held("agent-a"):
            for message in messages[start : start + TOGETHER]:
                clients.append(lab.tcp_client())
                clients[-1].send(message)
            # Connections are accepted in turn: when these are answered, those before them have been read.
            for _ in range(3):
                other = lab.tcp_client()
                assert other.ask(health).json["bottle"] == "agent-b"
                other.close()
        for client in clients:
            yield client
            client.close()


def is_refused(client: Client) -> bool:
    return client.answer().status in (400, 403)


def test_what_is_handed_over_is_aimed_at_nothing_else(lab: Harness) -> None:
    everything = [*ADDRESSES.values(), *HOSTS.values(), *STRANGERS.values()]
    messages = [
        *(get(f"http://{text}/allowed", text) for text in everything),
        *(get("http://api.example.com/allowed", text) for text in everything),
        *(request("CONNECT", f"{text}:443", f"{text}:443") for text in (ADDRESSES | HOSTS).values()),
        *(connect(host) + hello(host) for host in ("bare.example.com", "api.example.com")),
    ]
    clients = handed_over(lab, [signed(message) for message in messages])
    let_through = [
        message for message, client in zip(messages, clients, strict=True) if not is_refused(client)
    ]
    assert (let_through, lab.requests) == ([], [])


def test_who_is_handed_over_is_who_it_was(lab: Harness) -> None:
    mine, theirs = get("http://api.example.com/allowed", "api.example.com"), TOKENS["agent-b"]
    other = signed(get("http://other.example.com/x", "other.example.com"), "agent-b")
    right, wrong, both = (signed(mine), signed(mine, token=theirs), signed(mine) + other)
    for message, client in zip((right, wrong, both), handed_over(lab, [right, wrong, both]), strict=True):
        if message is wrong:
            assert client.answer().status == 407
        else:
            assert client.answer().status == 200
            assert (client.answer() if message is both else client.ask(other)).status == 407
    assert [seen.origin for seen in lab.requests] == ["api.example.com"] * 2


def test_a_tunnel_that_is_handed_over_carries_nothing_before_the_right_server_name(lab: Harness) -> None:
    names = ("other.example.com", "bare.example.comx", None)
    clients = handed_over(lab, [signed(connect("bare.example.com"))] * len(names))
    for client, name in zip(clients, names, strict=True):
        assert client.answer(to=b"CONNECT").status == 200
        client.send(hello(name))
        assert client.everything() in (b"", bytes.fromhex("15030300020270"))
    assert all(connection.raw == b"" for connection in lab.origins.connections)


def connections(lab: Harness) -> int:
    return sum(each["connections"] for each in lab.control("GET", "/status")["bottles"].values())


def test_a_bottle_that_fills_its_room_leaves_the_others_theirs(lab: Harness) -> None:
    """Over TCP, where each process accepts connections of both."""
    eventually(lambda: connections(lab) == 0, "quiet")
    message = get("http://_egress.local/health", "_egress.local")
    answers = [lab.tcp_client().ask(signed(message)) for _ in range(MOST + 10)]
    assert [answer.status for answer in answers] == [200] * MOST + [503] * 10
    answers = [lab.tcp_client().ask(signed(message, "agent-b")) for _ in range(MOST)]
    assert [answer.status for answer in answers] == [200] * MOST
