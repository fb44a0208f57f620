"""gRPC over a bare tunnel: calls and streams pass unread; what is not allowed reaches nobody."""

from __future__ import annotations

import sys

import pytest

from tests.support.tool_env import DENIED, GRPC, PROGRAMS, Bottle

pytestmark = [pytest.mark.process, pytest.mark.tools]


def test_calls_and_streams_pass(bottle: Bottle) -> None:
    told = bottle.run(sys.executable, PROGRAMS / "with_grpc.py", f"{GRPC}:443").json
    assert told == {"echo": "cba", "count": 1000, "last": "999"}


def test_an_unlisted_host_is_unavailable_and_on_record(bottle: Bottle) -> None:
    told = bottle.run(sys.executable, PROGRAMS / "with_grpc.py", f"{DENIED}:443").json
    assert told["code"] in ("UNAVAILABLE", "DEADLINE_EXCEEDED"), told
    assert bottle.workshop.refusals(DENIED)
