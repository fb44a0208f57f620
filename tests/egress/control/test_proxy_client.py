"""The client of the egress process: what it asks over the real socket, and what it makes of bad answers."""

from __future__ import annotations

import re
import socket
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import pytest

from egress.contract.ack import Ack
from egress.tables import proxy_client
from egress.tables.proxy_client import EgressProcess, ProxyDown, RecordBatch
from tests.support.fake_proxy import LOADED_AT, StandIn, record


@pytest.fixture
def client(plane: StandIn) -> EgressProcess:
    return EgressProcess(plane.home / "run" / "egress.sock")


def test_a_reload_brings_the_ack(plane: StandIn, client: EgressProcess) -> None:
    plane.live, plane.problems = {"agent-a": 4}, {"agent-a": "routes.yaml is torn."}
    assert client.reload("agent-a") == Ack("agent-a", 4, LOADED_AT, "routes.yaml is torn.")
    assert plane.asked == [("POST", "/reload/agent-a")]


def test_a_bottle_whose_files_are_gone_has_version_0(client: EgressProcess) -> None:
    assert client.reload("nobody") == Ack("nobody", 0, None, "the bottle's files are gone")


def test_routes_of_an_unknown_bottle_are_a_key_error(plane: StandIn, client: EgressProcess) -> None:
    plane.live["agent-a"] = 3
    assert client.routes("agent-a") == {"version": 3, "routes": [{"host": "from.proxy"}]}
    with pytest.raises(KeyError):
        client.routes("nobody")


def test_records_come_from_where_the_reader_was(plane: StandIn, client: EgressProcess) -> None:
    plane.queue, plane.dropped = [record(path=f"/{number}") for number in range(5)], 7
    batch = records(client, boot="boot-1")
    assert (batch.boot, batch.next, batch.dropped) == ("boot-1", 5, 7)
    assert [found["path"] for found in batch.records] == ["/3", "/4"]
    assert records(client, boot="an earlier run").records[0]["path"] == "/0"


def records(client: EgressProcess, *, boot: str) -> RecordBatch:
    with closing(client.ask_for_records(boot=boot, after=3, wait=0)) as question:
        return RecordBatch.of(question.answer())


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "Remote end closed connection without response"),
        (b"SSH-2.0\r\n\r\n", "its answer cannot be read"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{", "its answer cannot be read"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{x}", "its answer cannot be read"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "its answer is not the one expected"),
        (
            b'HTTP/1.1 404 No\r\nContent-Length: 15\r\n\r\n{"error": "no"}',
            "its answer is not the one expected",
        ),
    ],
    ids=["nothing", "not HTTP", "cut short", "not JSON", "no object", "another object"],
)
def test_an_answer_that_makes_no_sense_counts_as_none(
    plane: StandIn, client: EgressProcess, raw: bytes, why: str
) -> None:
    plane.raw = raw
    with pytest.raises(ProxyDown, match=re.escape(f"does not answer ({why}); 'make up' starts it")):
        client.reload("agent-a")


@pytest.mark.parametrize(("there", "why"), [(False, "No such file"), (True, "Connection refused")])
def test_a_process_that_is_gone_is_named_as_the_cause(home: Path, there: bool, why: str) -> None:
    path = home / "egress.sock"
    if there:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    with pytest.raises(ProxyDown, match=why):
        EgressProcess(path).status()


def test_a_process_that_hangs_is_not_waited_for_forever(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_client, "ANSWER_SECONDS", 0.05)
    path = home / "egress.sock"
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(path))
        hanging.listen()
        with pytest.raises(ProxyDown, match=r"nothing came within 0\.05 s"):
            EgressProcess(path).status()


def test_nobody_waits_for_an_answer_when_the_process_ends(
    plane: StandIn, client: EgressProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang() -> None:
        asked.set()
        over.wait(60)

    def end() -> None:
        assert asked.wait(30)
        proxy_client.abort_calls()

    asked, over = Event(), Event()
    plane.reloading = hang
    monkeypatch.setattr(proxy_client, "_aborted", False)  # and so again afterwards
    monkeypatch.setattr(proxy_client, "ANSWER_SECONDS", 60)
    ending = Thread(target=end)
    ending.start()
    with pytest.raises(ProxyDown, match="bot-bottle is stopping"):
        client.reload("agent-a")
    over.set()
    ending.join()
    with pytest.raises(ProxyDown, match="bot-bottle is stopping"):
        client.status()
    assert not proxy_client._open_connections
