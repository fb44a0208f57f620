"""Attempts to make the proxy keep much: each bottle has its limits, and no other one feels them."""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from egress.dlp.git_packs import MEMORY
from egress.dlp.scanner import memory_of_scan
from tests.support.git_packs import Pack
from tests.support.proxy_harness import Harness, eventually, get, pinned, request, running_lab

pytestmark = pytest.mark.process
HOST = "api.example.com"
HELD = 17 * 1024 * 1024  # as little as can be set
MORE = 30  # than that
ROUTES = [pinned(HOST, methods=["POST"]), pinned("bare.example.com")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    home = tmp_path_factory.mktemp("memory") / "h"
    with running_lab(home, EGRESS_MAX_HELD_MIB=str(HELD // 1024 // 1024), EGRESS_PROCESSES="1") as lab:
        for slug in ("agent-a", "agent-b"):
            lab.publish(slug, ROUTES)
        yield lab
        assert "Traceback" not in lab.log(), lab.log()


@pytest.fixture(autouse=True)
def quiet(lab: Harness) -> Iterator[None]:
    yield
    lab.reset()
    eventually(lambda: held_bytes(lab) == 0, "the end of what is held")


def held_bytes(lab: Harness) -> int:
    return int(lab.control("GET", "/status")["bottles"]["agent-a"]["held_bytes"])


def resident(lab: Harness) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{lab.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def upload(body: bytes, *headers: str, path: str = "/in") -> bytes:
    target, length = f"http://{HOST}{path}", f"Content-Length: {len(body)}"
    return request("POST", target, HOST, length, "Content-Type: text/plain", *headers, body=body)


NOISE = random.Random(1).randbytes(350_000)
PLAIN = upload(NOISE[:100_000]), memory_of_scan([], 100_000)
GZIP = upload(gzip.compress(NOISE), "Content-Encoding: gzip"), memory_of_scan(["gzip"], len(NOISE))


@pytest.mark.parametrize(("message", "each"), [PLAIN, GZIP], ids=["plain", "gzip"])
def test_uploads_that_stop_are_held_up_to_the_limit_and_another_bottle_is_served(
    lab: Harness, message: bytes, each: int
) -> None:
    assert lab.client().ask(message).status == 200
    before, stopped = resident(lab), [lab.client() for _ in range(HELD // each)]
    for client in stopped:
        client.send(message[:-5])
    eventually(lambda: held_bytes(lab) == len(stopped) * each, "the uploads")
    for _ in range(MORE):
        answer = lab.client().ask(message[:-5])
        assert (answer.status, answer.reason) == (503, "too-much-held")
    assert resident(lab) - before < 3 * HELD  # with what the connections have on its way
    assert [lab.client("agent-b").ask(message).status for _ in range(MORE)] == [200] * MORE
    assert lab.client().ask(get(f"http://{HOST}/in", HOST)).status == 403, "without a body, all is as ever"
    for client in stopped:
        client.send(message[-5:])
    assert [client.answer().status for client in stopped] == [200] * len(stopped)


def test_packs_that_stop_are_held_up_to_the_limit(lab: Harness) -> None:
    """Each may come to need much, which is counted when it begins."""
    message = upload(Pack().blob(NOISE).blob(NOISE).bytes)
    assert lab.client().ask(message).status == 200
    stopped = [lab.client() for _ in range(HELD // MEMORY)]
    for client in stopped:
        client.send(message[:-5])
    eventually(lambda: held_bytes(lab) > len(stopped) * MEMORY, "the uploads")
    answer = lab.client().ask(message)
    assert (answer.status, answer.reason) == (503, "too-much-held")
    assert lab.client("agent-b").ask(message).status == 200
    for client in stopped:
        client.send(message[-5:])
        assert client.answer().status == 200


def test_an_upload_that_is_sent_holds_nothing_while_it_waits_for_its_answer(lab: Harness) -> None:
    lab.client().send(upload(gzip.compress(b"text"), "Content-Encoding: gzip", path="/silent"))
    eventually(lambda: [seen.whole for seen in lab.requests] == [True], "the upload")
    assert lab.control("GET", "/status")["bottles"]["agent-a"]["flows"] == 1
    assert held_bytes(lab) == 0
