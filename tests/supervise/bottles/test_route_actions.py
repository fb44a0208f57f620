"""One route changed or withdrawn: for whom, when, what goes with it and what stays; all of it on record."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from botbottle.models import Bottle
from egress.contract import snapshot
from egress.models import RouteTableVersion
from egress.policy.routes import Auth, Dlp, Route
from egress.tables import homes, publishing, versions
from supervise import audit_check
from supervise.access import assignments
from supervise.bottles import records as bottles
from supervise.bottles import route_actions
from supervise.bottles.records import NoSuchBottle
from supervise.errors import BadAsk, NotPermitted, StaleReview, TooRisky
from supervise.models import AuditEvent
from tests.support.threads import together

pytestmark = pytest.mark.django_db(transaction=True)
API = Route("api.example.com", ("/a", "/b"), ("GET",), Auth("Bearer", "GITHUB_TOKEN"))
OTHER = Route("other.example.com")


@pytest.fixture
def grown(agent_a: Bottle) -> Bottle:
    """Version 2: two routes, and a host that is only at the gate."""
    grow(agent_a, API, OTHER)
    return agent_a


def grow(bottle: Bottle, *routes: Route) -> None:
    with transaction.atomic():
        newest = versions.lock(bottle)
        table = newest.table.with_gate_host("gate.example.com")
        for route in routes:
            table = table.with_route(route)
        versions.append(newest, table, author="tests", cause="tests")
    publishing.publish(bottle)


def live(bottle: Bottle) -> Any:
    directory = homes.bottle_directory(bottle)
    return snapshot.load((directory / "routes.yaml").read_text(), (directory / "gate.yaml").read_text())


def withdraw(actor: User, host: str = API.host, seen: int = 2) -> RouteTableVersion:
    return route_actions.withdraw_route("agent-a", host, actor=actor, seen_version=seen)


def change(actor: User, seen: int = 2, host: str = API.host, **fields: Any) -> RouteTableVersion:
    return route_actions.change_route("agent-a", host, fields, actor=actor, seen_version=seen)


def test_a_withdrawn_route_is_gone_with_its_gate_host_and_nothing_else(operator: User, grown: Bottle) -> None:
    assert withdraw(operator).version == 3
    now = live(grown)
    assert (now.version, now.table.routes) == (3, (OTHER,))
    assert now.table.gate_hosts == ("gate.example.com", OTHER.host)


def test_a_withdrawal_is_on_record(operator: User, grown: Bottle) -> None:
    made = withdraw(operator)
    assert (made.author, made.cause) == ("olivia", "route withdrawn: api.example.com")
    event = AuditEvent.objects.latest("seq")
    assert (event.action, event.actor_name, event.bottle_slug) == ("route withdrawn", "olivia", "agent-a")
    assert event.details == {
        "host": API.host, "before": API.as_dict(), "after": None, "table_version": 3,
    }  # fmt: skip
    assert audit_check.verify()[1] is None


def test_a_changed_route_is_live_and_the_others_stay(operator: User, grown: Bottle) -> None:
    fields = {"auth": None, "dlp": {"out": False}, "pinned_addresses": ["10.0.0.1"]}
    assert change(operator, **fields).version == 3
    wanted = Route(API.host, API.path_allowlist, API.methods, None, None, Dlp(out=False), ("10.0.0.1",))
    table = live(grown).table
    assert table.routes == (wanted, OTHER)
    assert table.gate_hosts == (API.host, "gate.example.com", OTHER.host)
    event = AuditEvent.objects.latest("seq")
    assert (event.action, event.details["after"]) == ("route changed", wanted.as_dict())
    assert "GITHUB_TOKEN" in str(event.details["before"])


VERBS = [withdraw, partial(change, methods=["GET", "HEAD"])]


@pytest.mark.parametrize("verb", VERBS, ids=["withdraw", "change"])
def test_only_who_may_decide_for_the_bottle_does_it(
    verb: Any, operator: User, second_operator: User, viewer: User, grown: Bottle
) -> None:
    assignments.assign(grown, operator, author="root")
    for actor in (second_operator, viewer):
        with pytest.raises(NotPermitted):
            verb(actor)
    assert versions.current(grown).version == 2
    assert verb(operator).version == 3


@pytest.mark.parametrize("verb", VERBS, ids=["withdraw", "change"])
@pytest.mark.parametrize("seen", [0, 1, 3])
def test_nothing_is_changed_unseen(verb: Any, operator: User, grown: Bottle, seen: int) -> None:
    with pytest.raises(StaleReview, match="version 2 is the newest"):
        verb(operator, seen=seen)
    assert versions.current(grown).version == 2


@pytest.mark.parametrize("verb", VERBS, ids=["withdraw", "change"])
@pytest.mark.parametrize("host", ["gate.example.com", "nobody.example.com", "", "*.example.com"])
def test_an_unknown_host_is_refused(verb: Any, operator: User, grown: Bottle, host: str) -> None:
    with pytest.raises(BadAsk, match="There is no route of"):
        verb(operator, host=host)
    assert versions.current(grown).version == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "nothing to change"),
        ({"methods": ["get"]}, "nothing to change"),
        ({"methods": ["FETCH ME"]}, "must be an HTTP method"),
        ({"host": "evil.example.com"}, "a route of its own"),
        ({"pinned_addresses": ["\ud800"]}, "must be an IP address"),
        ({"anything": 1}, "unknown key"),
    ],
)
def test_bad_fields_are_one_sentence(
    operator: User, grown: Bottle, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadAsk, match=words):
        route_actions.change_route("agent-a", API.host, fields, actor=operator, seen_version=2)
    with pytest.raises(BadAsk, match=words):
        route_actions.preview(versions.current(grown), API.host, fields)
    assert versions.current(grown).version == 2


def test_a_bottle_that_is_gone_has_no_routes(operator: User, grown: Bottle) -> None:
    bottles.delete("agent-a", author="tests")
    for verb in VERBS:
        with pytest.raises(NoSuchBottle):
            verb(operator)


# --- what needs several operators


def test_taking_needs_nobody_elses_yes(operator: User, grown: Bottle, settings: Any) -> None:
    settings.SUPERVISE_QUORUM = 2
    assert change(operator, path_allowlist=["/a"]).version == 3
    assert change(operator, seen=3, auth=None).version == 4
    assert withdraw(operator, seen=4).version == 5


def test_one_operator_does_not_widen_alone_what_is_high_risk(
    operator: User, grown: Bottle, settings: Any
) -> None:
    settings.SUPERVISE_QUORUM = 2
    for fields in ({"methods": ["GET", "POST"]}, {"path_allowlist": None}, {"dlp": {"out": False}}):
        with pytest.raises(TooRisky, match="needs 2 operators"):
            change(operator, **fields)
    with pytest.raises(TooRisky, match="needs 2 operators"):
        change(operator, host=OTHER.host, auth={"scheme": "Bearer", "token_ref": "T"})
    with pytest.raises(TooRisky, match="needs 2 operators"):
        change(operator, host=OTHER.host, pinned_addresses=["10.0.0.1"])
    assert versions.current(grown).version == 2
    settings.SUPERVISE_QUORUM = 1
    assert change(operator, methods=["GET", "POST"]).version == 3


def test_a_withdrawal_that_leaves_a_wider_route_is_a_widening(
    operator: User, grown: Bottle, settings: Any
) -> None:
    grow(grown, Route("*.example.com"))
    settings.SUPERVISE_QUORUM = 2
    with pytest.raises(TooRisky, match="left to a wider one"):
        withdraw(operator, seen=3)
    assert withdraw(operator, "*.example.com", seen=3).version == 4
    assert withdraw(operator, seen=4).version == 5


def test_of_two_at_one_moment_one_is_told_to_look_again(operator: User, grown: Bottle) -> None:
    results = together([partial(withdraw, operator), partial(change, operator, auth=None)] * 2)
    assert sum(isinstance(result, RouteTableVersion) for result in results) == 1
    assert sum(isinstance(result, StaleReview) for result in results) == 3


# --- looking first


def test_looking_tells_what_would_happen_and_changes_nothing(operator: User, grown: Bottle) -> None:
    newest = versions.current(grown)
    taken = route_actions.preview(newest, API.host)
    assert taken.effects[0].startswith("no longer reachable: api.example.com")
    assert "route api.example.com" in taken.before and "route api.example.com" not in taken.after
    wider = route_actions.preview(newest, API.host, {"path_allowlist": None})
    assert wider.risk.level.word == "high"
    narrower = route_actions.preview(newest, API.host, {"path_allowlist": ["/a"]})
    assert (narrower.risk.level.word, narrower.risk.reasons) == ("low", ())
    assert versions.current(grown).version == 2
