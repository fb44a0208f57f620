"""The modify form's fields become a payload; an empty field never means "all"."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.http import QueryDict

from egress.policy.asks import parse_operator_route
from egress.policy.routes import Auth, Dlp, Lease, Route
from supervise.errors import BadAsk
from supervise.kinds.route_edit import RouteEdit

FORM = {
    "host": "api.example.com", "paths_are": "some", "paths": "/a\r\n /b \r\n\r\n", "methods_are": "some",
    "methods": ["GET", "POST"], "scheme": "", "token_ref": "", "header": "", "ttl": "", "unit": "hours",
    "max_uses": "",
}  # fmt: skip


def edit(**changes: Any) -> RouteEdit:
    form = QueryDict(mutable=True)
    for name, value in {**FORM, **changes}.items():
        form.setlist(name, value if isinstance(value, list) else [value])
    return RouteEdit.of_form(form)


@pytest.mark.parametrize(
    ("changes", "payload"),
    [
        ({}, {"path_allowlist": ["/a", "/b"], "methods": ["GET", "POST"]}),
        ({"paths_are": "all"}, {"methods": ["GET", "POST"]}),
        ({"methods_are": "all"}, {"path_allowlist": ["/a", "/b"]}),
        (
            {"paths_are": "all", "methods_are": "all", "scheme": "Bearer", "token_ref": " T "},
            {"auth": {"scheme": "Bearer", "token_ref": "T"}},
        ),
        (
            {"paths_are": "all", "methods_are": "all", "scheme": "header", "token_ref": "T", "header": "X-K"},
            {"auth": {"scheme": "header", "token_ref": "T", "header": "X-K"}},
        ),
        (
            {"paths_are": "all", "methods_are": "all", "ttl": "2", "unit": "days", "max_uses": "7"},
            {"lease": {"ttl_seconds": 172800, "max_uses": 7}},
        ),
        (
            {"paths_are": "all", "methods_are": "all", "searches_out": "no"},
            {"dlp": {"out": False, "in": False}},
        ),
        ({"paths_are": "all", "methods_are": "all", "searches_in": "yes"}, {"dlp": {"in": True}}),
        (
            {"paths_are": "all", "methods_are": "all", "pinned": " 10.0.0.1\r\n\r\nfd00::1 "},
            {"pinned_addresses": ["10.0.0.1", "fd00::1"]},
        ),
    ],
)
def test_the_fields_become_a_payload(changes: dict[str, Any], payload: dict[str, Any]) -> None:
    assert edit(**changes).payload() == {"host": "api.example.com", **payload}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"paths": "  \r\n"}, "at least one path"),
        ({"methods": []}, "at least one method"),
        ({"token_ref": "T"}, "Choose a scheme"),
        ({"ttl": "1.5"}, "whole number"),
        ({"ttl": "-1"}, "whole number"),
        ({"ttl": "٣"}, "whole number"),
        ({"ttl": "9" * 40}, "whole number"),
        ({"ttl": "1", "unit": "years"}, "counted in"),
        ({"max_uses": "many"}, "whole number"),
        ({"searches_out": "maybe"}, "how outgoing data is searched"),
    ],
)
def test_contradictions_are_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadAsk, match=words):
        edit(**changes).payload()


def test_a_missing_choice_narrows_and_never_widens() -> None:
    payload = edit(paths_are="", methods_are="").payload()
    assert (payload["path_allowlist"], payload["methods"]) == (["/a", "/b"], ["GET", "POST"])


@pytest.mark.parametrize(
    "payload",
    [
        {"host": "a.example.com"},
        {"host": "*.example.com", "path_allowlist": ["/x", "/y"], "methods": ["PROPFIND"]},
        {"host": "a.example.com", "auth": {"scheme": "token", "token_ref": "T"}},
        {"host": "a.example.com", "lease": {"ttl_seconds": 90, "max_uses": 3}},
        {"host": "a.example.com", "lease": {"ttl_seconds": 172800}},
        {"host": "a.example.com", "lease": {"max_uses": 1}},
        {"host": "a.example.com", "dlp": {"out": False, "in": False}},
        {"host": "a.example.com", "dlp": {"out": True, "in": True}},
        {"host": "db.internal", "pinned_addresses": ["10.0.0.1", "fd00::1"]},
    ],
)
def test_a_form_sent_back_unchanged_is_the_same_ask(payload: dict[str, Any]) -> None:
    start = RouteEdit.of_payload(payload)
    assert set(start.methods) <= set(start.choices)
    assert parse_operator_route(start.payload()) == parse_operator_route(payload)


LEASED = Route(
    "a.example.com", ("/x",), auth=Auth("Bearer", "T"), lease=Lease(max_uses=3), dlp=Dlp(out=False),
    pinned_addresses=("10.0.0.1",),
)  # fmt: skip


@pytest.mark.parametrize("route", [Route("a.example.com"), LEASED], ids=["bare", "with all"])
def test_a_routes_form_sent_back_unchanged_changes_nothing(route: Route) -> None:
    start = RouteEdit.of_route(route)
    assert start.changes(start) == {}


@pytest.mark.parametrize(
    ("edits", "fields"),
    [
        ({"scheme": "", "token_ref": ""}, {"auth": None}),
        ({"all_paths": True}, {"path_allowlist": None}),
        ({"searches_out": ""}, {"dlp": None}),
        ({"searches_out": "yes", "searches_in": True}, {"dlp": {"out": True, "in": True}}),
        ({"pinned": ""}, {"pinned_addresses": None}),
        ({"keeps_lease": False}, {"lease": None}),
        ({"keeps_lease": False, "ttl": "1"}, {"lease": {"ttl_seconds": 3600}}),
    ],
)
def test_only_what_differs_is_sent_and_nothing_means_away(
    edits: dict[str, Any], fields: dict[str, Any]
) -> None:
    start = RouteEdit.of_route(LEASED)
    assert replace(start, **edits).changes(start) == fields
