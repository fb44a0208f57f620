"""Hypothesis strategies for tables and asks over few names, so that routes meet, cover and shadow."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from egress.policy.decide import Request
from egress.policy.routes import Auth, Dlp, Lease, Route
from egress.policy.table import RouteTable

SOAK = 50 if os.environ.get("BOTTLE_SOAK") == "1" else 1


def examples(small: int) -> int:
    """How many a property test tries: few in every run, many in `make soak`."""
    return small * SOAK


NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)

HOSTS = ("a.com", "x.a.com", "y.x.a.com", "b.com", "xn--bcher-kva.example")
PATTERNS = (*HOSTS, "*.a.com", "*.x.a.com")
PREFIXES = ("/a", "/a/b", "/ab", "/c%2Fd", "/c")
METHODS = ("GET", "POST", "DELETE")

moments = st.integers(-3, 5000).map(lambda seconds: NOW + timedelta(seconds=seconds))
leases = st.builds(Lease, st.none() | moments, st.integers(1, 9), granted_at=st.none() | moments) | st.builds(
    Lease, moments
)
auths = st.sampled_from([Auth("Bearer", "TOKEN"), Auth("token", "OTHER"), Auth("header", "KEY", "X-Api-Key")])
routes = st.builds(
    Route,
    host=st.sampled_from(PATTERNS),
    path_allowlist=st.lists(st.sampled_from(PREFIXES), max_size=3).map(tuple),
    methods=st.lists(st.sampled_from(METHODS), max_size=2).map(tuple),
    auth=st.none() | auths,
    lease=st.none() | leases,
    dlp=st.builds(Dlp, st.none() | st.booleans(), st.booleans()),
    pinned_addresses=st.sampled_from([(), ("10.0.0.1",)]),
)
tables = st.builds(
    RouteTable,
    st.lists(routes, max_size=5, unique_by=lambda route: route.host).map(tuple),
    st.lists(st.sampled_from(PATTERNS), max_size=5).map(tuple),
)
asks: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"host": st.sampled_from(PATTERNS)},
    optional={
        "path_allowlist": st.lists(st.sampled_from(PREFIXES), min_size=1, max_size=3),
        "methods": st.lists(st.sampled_from(METHODS), min_size=1, max_size=2),
        "auth": st.sampled_from(
            [{"scheme": "Bearer", "token_ref": "TOKEN"}, {"scheme": "token", "token_ref": "NEW"}]
        ),
        "lease": st.fixed_dictionaries(
            {"ttl_seconds": st.integers(1, 9000)}, optional={"max_uses": st.integers(1, 9)}
        )
        | st.fixed_dictionaries({"max_uses": st.integers(1, 9)}),
    },
)
requests = st.builds(
    Request,
    scheme=st.just("https"),
    host=st.sampled_from((*HOSTS, "z.a.com", "z.x.a.com")),
    port=st.just(443),
    method=st.sampled_from((*METHODS, "PUT")),
    path=st.sampled_from((*PREFIXES, "/", "/a/b/c", "/abc", "/c%2fd/e")),
)
