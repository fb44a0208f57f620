"""The same bytes are sent to a proxy with the fast path and to one without it.

Both must come to the same verdict, send the same bytes to the origin and keep the same record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.attack.test_fuzz import heads, mutated, usual_heads
from tests.attack.test_two_ways import FIELDS, HOST, TARGETS, Ways
from tests.support.proxy_harness import get, request, running_lab
from tests.support.strategies import examples

pytestmark = pytest.mark.process
TABLES = {
    "targets": [get(target, HOST) for target in TARGETS],
    "fields": [get("/allowed", HOST, *fields) for fields in FIELDS.values()],
    "methods": [
        request(method, path, HOST)
        for method in ("GET", "HEAD", "OPTIONS", "POST", "DELETE", "TRACE")
        for path in ("/allowed", "/allowed/same-head", "/no")
    ],
    "answers": [
        get(f"/allowed{path}", HOST)
        for path in ("/chunked", "/status/204", "/status/304", "/in-pieces", "/hints", "/big/100000")
    ],
}


class Both(NamedTuple):
    fast: Ways
    plain: Ways

    def check(self, raw: bytes) -> None:
        assert self.fast.warm(raw) == self.plain.warm(raw)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    homes = (tmp_path_factory.mktemp(name) / "h" for name in ("on", "off"))
    with running_lab(next(homes)) as fast, running_lab(next(homes), EGRESS_FAST_PATH="0") as plain:
        found = Both(Ways(fast), Ways(plain))
        yield found
        found.fast.check_records_of(found.plain)


@pytest.mark.parametrize("table", TABLES)
def test_the_fast_path_changes_nothing(both: Both, table: str) -> None:
    for raw in TABLES[table]:
        both.check(raw)


lines = mutated(
    st.sampled_from([b"GET /allowed HTTP/1.1", b"HEAD /allowed/x HTTP/1.1", b"GET /no?x HTTP/1.1"])
)


@settings(
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(heads | usual_heads | lines.map(lambda line: line + b"\r\nHost: api.example.com"))
def test_the_fast_path_changes_nothing_for_any_head(both: Both, raw: bytes) -> None:
    both.check(raw if raw.endswith(b"\r\n\r\n") else raw + b"\r\n\r\n")
