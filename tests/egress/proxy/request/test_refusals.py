"""The tool call in a refusal: one that can be made as it is, whatever was refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from egress.policy.asks import parse_egress_ask, parse_gate_ask
from egress.policy.decide import Request, decide
from egress.policy.routes import Route
from egress.policy.table import RouteTable, Snapshot
from egress.proxy.http.targets import Target
from egress.proxy.request.refusals import refusal_for

AT_THE_GATE = RouteTable((Route("a.com"),), ())


@pytest.mark.parametrize("length", [10, 1_000, 10_000, 60_000])
@pytest.mark.parametrize(
    ("table", "tool", "parse"),
    [
        (RouteTable(), "egress-block", parse_egress_ask),
        (AT_THE_GATE, "pipelock-block", parse_gate_ask),
    ],
)
def test_it_can_be_made_and_kept_however_long_the_path_is(
    length: int, table: RouteTable, tool: str, parse: object
) -> None:
    path = "/v1/" + "x" * length
    request = Request("https", "a.com", 443, "GET", path)
    verdict = decide(request, Snapshot("b", 1, table, ""), now=datetime.now(UTC))
    ask = refusal_for(verdict, Target("https", "a.com", 443, path, path.encode()), "GET").ask
    assert ask is not None and ask["tool"] == tool
    justification = ask["arguments"].pop("justification")
    assert justification.startswith("GET https://a.com/v1") and "was refused" in justification
    assert parse(ask["arguments"])["host"] == "a.com"  # type: ignore[operator]
    assert len(json.dumps(ask)) + len(justification) < 4096
