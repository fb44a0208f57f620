"""Asks are checked before anything is queued; each refusal is a sentence that names the field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.policy.asks import parse_egress_ask, parse_gate_ask, parse_operator_route
from egress.policy.errors import PolicyError


@pytest.mark.parametrize(
    ("arguments", "payload"),
    [
        ({"host": "API.github.com."}, {"host": "api.github.com"}),
        (
            {"host": "a.com", "path_allowlist": ["/b/", "/a", "/b"], "methods": ["post", "GET", "POST"]},
            {"host": "a.com", "path_allowlist": ["/a", "/b"], "methods": ["GET", "POST"]},
        ),
        ({"host": "a.com", "path_allowlist": ["/", "/b"]}, {"host": "a.com"}),
        (
            {"host": "a.com", "path_allowlist": [], "methods": [], "auth": None, "lease": None},
            {"host": "a.com"},
        ),
        (
            {"host": "a.com", "auth": {"scheme": "token", "token_ref": "T"}, "lease": {"max_uses": 1}},
            {"host": "a.com", "auth": {"scheme": "token", "token_ref": "T"}, "lease": {"max_uses": 1}},
        ),
        (
            {"host": "*.a.com", "lease": {"max_uses": None, "ttl_seconds": 2_592_000}},
            {"host": "*.a.com", "lease": {"ttl_seconds": 2_592_000}},
        ),
    ],
)
def test_a_good_ask_gets_its_canonical_form(arguments: dict[str, Any], payload: dict[str, Any]) -> None:
    assert parse_egress_ask(arguments) == payload
    assert parse_egress_ask(payload) == payload
    assert parse_operator_route(arguments) == payload


BEARER = {"scheme": "Bearer", "token_ref": "T"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "host is required"),
        ({"host": ""}, "host is required"),
        ({"host": "  "}, "host is required"),
        ({"host": 5}, "host is required and must be text"),
        ({"host": "127.0.0.1"}, "host '127.0.0.1' is an IP address"),
        ({"host": "*.com"}, "host '*.com' opens a public suffix"),
        ({"host": "a.com", "hots": 1}, "the request has an unknown key 'hots'"),
        ({"host": "a.com", "dlp": {}}, "the request has an unknown key 'dlp'"),
        ({"host": "a.com", "path_allowlist": "/x"}, "path_allowlist must be a list"),
        ({"host": "a.com", "path_allowlist": {"/x": 1}}, "path_allowlist must be a list"),
        ({"host": "a.com", "path_allowlist": ["/a", 3]}, "path_allowlist[1] must be text"),
        (
            {"host": "a.com", "path_allowlist": ["repos"]},
            "path_allowlist[0] must start with '/': got 'repos'",
        ),
        ({"host": "a.com", "path_allowlist": ["/x"] * 101}, "path_allowlist has more than 100 entries"),
        ({"host": "a.com", "methods": "GET"}, "methods must be a list"),
        ({"host": "a.com", "methods": ["GET", "G T"]}, "methods[1] must be an HTTP method"),
        ({"host": "a.com", "auth": "Bearer"}, "auth must be an object with scheme, token_ref"),
        ({"host": "a.com", "auth": {}}, "auth.scheme is required"),
        ({"host": "a.com", "auth": {"scheme": "Bearer"}}, "auth.token_ref is required"),
        ({"host": "a.com", "auth": {**BEARER, "header": "X"}}, "auth has an unknown key 'header'"),
        ({"host": "a.com", "auth": {**BEARER, "scheme": "Basic"}}, "auth.scheme must be Bearer or token"),
        ({"host": "a.com", "auth": {**BEARER, "scheme": ["Bearer"]}}, "auth.scheme must be Bearer or token"),
        ({"host": "a.com", "auth": {**BEARER, "token_ref": "ghp_x y"}}, "auth.token_ref must name a secret"),
        ({"host": "a.com", "auth": {**BEARER, "token_ref": 5}}, "auth.token_ref must name a secret"),
        ({"host": "a.com", "lease": 60}, "lease must be an object"),
        ({"host": "a.com", "lease": {}}, "lease needs ttl_seconds, max_uses or both"),
        ({"host": "a.com", "lease": {"ttl": 5}}, "lease has an unknown key 'ttl'"),
        ({"host": "a.com", "lease": {"ttl_seconds": 0}}, "lease.ttl_seconds must be a whole number"),
        ({"host": "a.com", "lease": {"ttl_seconds": 2_592_001}}, "lease.ttl_seconds must be a whole number"),
        ({"host": "a.com", "lease": {"ttl_seconds": 1.5}}, "lease.ttl_seconds must be a whole number"),
        ({"host": "a.com", "lease": {"max_uses": True}}, "lease.max_uses must be a whole number"),
        ({"host": "a.com", "lease": {"max_uses": "3"}}, "lease.max_uses must be a whole number"),
        (["a.com"], "the request must be an object"),
    ],
)
def test_a_bad_ask_is_refused_with_the_field(arguments: Any, sentence: str) -> None:
    with pytest.raises(PolicyError) as refusal:
        parse_egress_ask(arguments)
    assert str(refusal.value).startswith(sentence)


def test_a_refusal_never_repeats_what_may_be_a_secret() -> None:
    with pytest.raises(PolicyError) as refusal:
        parse_egress_ask({"host": "a.com", "auth": {"scheme": "Bearer", "token_ref": "sk live/hunter2"}})
    assert "hunter2" not in str(refusal.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["path_allowlist", "methods", "auth", "lease", "dlp", "pinned_addresses"]), JSON
    ),
    st.sampled_from(["a.com", None, 3]) | st.text(max_size=8),
)
def test_any_json_is_parsed_or_refused_with_a_sentence(rest: dict[str, Any], host: object) -> None:
    for parse in (parse_egress_ask, parse_operator_route):
        try:
            payload = parse({"host": host, **rest})
        except PolicyError as refusal:
            assert str(refusal)
        else:
            assert parse(payload) == payload


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://API.github.com/repos?x=1#y", "api.github.com"),
        ("http://a.com:8080/", "a.com"),
        ("HTTPS://a.com", "a.com"),
        ("https://bücher.example/", "xn--bcher-kva.example"),
    ],
)
def test_a_gate_ask_names_the_host_of_the_url(url: str, host: str) -> None:
    assert parse_gate_ask({"failed_url": url}) == {"failed_url": url, "host": host}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "failed_url is required"),
        ({"failed_url": ""}, "failed_url is required"),
        ({"failed_url": 3}, "failed_url is required"),
        ({"failed_url": "https://a.com", "host": "b.com"}, "the request has an unknown key 'host'"),
        ({"failed_url": "ftp://a.com/"}, "failed_url must start with http:// or https://"),
        ({"failed_url": "a.com/x"}, "failed_url must start with http:// or https://"),
        ({"failed_url": "https:///x"}, "failed_url has no hostname"),
        ({"failed_url": "https://u:p@a.com/"}, "failed_url has user information"),
        ({"failed_url": "https://a.com/\nx"}, "failed_url has a space"),
        ({"failed_url": "https://a.com\\@b.com/"}, "failed_url has a space, a backslash"),
        ({"failed_url": "https://a\u202e.com/"}, "failed_url has a space"),
        ({"failed_url": "https://[::1]/"}, "failed_url's host '::1' is an IP address"),
        ({"failed_url": "https://[::1/"}, "failed_url is not a URL"),
        ({"failed_url": "https://127.1/"}, "failed_url's host '127.1' is an IP address"),
        ({"failed_url": "https://localhost/"}, "failed_url's host 'localhost' has no domain"),
        ({"failed_url": "https://*.a.com/"}, "failed_url's host must not be a pattern"),
        ({"failed_url": "https://a.com/" + "x" * 9000}, "failed_url is longer"),
        ({"failed_url": "https://a.com:99999/"}, "failed_url is not a URL"),
    ],
)
def test_a_bad_gate_ask_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PolicyError) as refusal:
        parse_gate_ask(arguments)
    assert str(refusal.value).startswith(sentence)


def test_an_operator_may_set_more() -> None:
    route = {
        "host": "gitlab.internal",
        "auth": {"scheme": "header", "token_ref": "K", "header": "X-Api-Key"},
        "dlp": {"out": True, "in": True},
        "pinned_addresses": ["10.0.0.7", "10.0.0.7"],
    }
    assert parse_operator_route(route) == {**route, "pinned_addresses": ["10.0.0.7"]}
    assert parse_operator_route({"host": "a.com", "auth": {"scheme": "Basic", "token_ref": "K"}})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"host": "gitlab.internal"}, "pinning it with pinned_addresses"),
        ({"host": "supervise", "pinned_addresses": ["10.0.0.1"]}, "belongs to bot-bottle"),
        ({"host": "a.com", "pinned_addresses": ["10.0.0"]}, "pinned_addresses[0] must be an IP address"),
        ({"host": "a.com", "dlp": {"answers": True}}, "dlp has an unknown key 'answers': it takes out, in"),
        (
            {"host": "a.com", "auth": {"scheme": "Basic", "token_ref": "K", "header": "X"}},
            "auth.header is only for",
        ),
        ({"host": "a.com", "auth": {"scheme": "sigv4", "token_ref": "K"}}, "auth.scheme must be"),
    ],
)
def test_but_not_everything(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PolicyError) as refusal:
        parse_operator_route(arguments)
    assert sentence in str(refusal.value)
