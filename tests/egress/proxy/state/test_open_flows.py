"""What is open is asked about again and again: cut when it is no longer allowed, and cheap to ask about."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from egress.policy import decide
from egress.policy.decide import Request
from egress.policy.routes import Lease, Route
from egress.policy.table import RouteTable, Snapshot
from egress.proxy.state.open_flows import Flows

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = Lease(datetime(2030, 1, 2, tzinfo=UTC))
PATH = "/%C3%A9"


class Open:
    """A request under way, and whether it was cut."""

    tunnelled = False

    def __init__(self, route: Route) -> None:
        self.request = Request("https", "a.com", 443, "GET", PATH)
        self.route = route
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True


def table(*prefixes: str) -> Snapshot:
    return Snapshot("b", 1, RouteTable((Route("a.com", prefixes, lease=LEASE),), ("a.com",)), "")


@pytest.mark.parametrize("leased_only", [True, False])
def test_the_paths_of_open_requests_are_not_read_again(
    monkeypatch: pytest.MonkeyPatch, leased_only: bool
) -> None:
    monkeypatch.setattr(decide, "canonical_path", None)
    snapshot = table("/%C3%A9")
    flows = Flows(Open(snapshot.table.routes[0]) for _ in range(10))
    assert flows.cut_forbidden(snapshot, NOW, leased_only=leased_only) == 0


def test_what_a_new_table_does_not_allow_is_cut() -> None:
    flow = Open(table().table.routes[0])
    assert Flows([flow]).cut_forbidden(table("/%C3%A8", "/b"), NOW) == 1
    assert flow.is_cut
