"""Attempts to reach a path or method that the route does not allow."""

from __future__ import annotations

import pytest

from tests.support.proxy_harness import Harness, get, pinned, request

pytestmark = pytest.mark.process

PATHS = [
    "/",
    "/forbidden",
    "/allowedevil",
    "/ALLOWED",
    "/allowed/../forbidden",
    "/allowed/..",
    "/allowed/.",
    "/./allowed",
    "/x/../allowed",
    "/allowed/%2e%2e/forbidden",
    "/allowed/%2E%2E/forbidden",
    "/allowed/.%2e/forbidden",
    "/allowed/%2e./forbidden",
    "/allowed/..%2fforbidden",
    "/allowed/..%2Fforbidden",
    "/allowed/%2e%2e%2fforbidden",
    "/allowed%2f..%2fforbidden",
    "/allowed/%252e%252e/forbidden",
    "/allowed/%25252e%25252e/forbidden",
    "/allowed/..%252fforbidden",
    "/allowed/..;/forbidden",
    "/allowed/..;x=y/forbidden",
    "/allowed;/../forbidden",
    "/allowed;x",
    "/allowed/%3b/../forbidden",
    "//allowed",
    "/allowed//../forbidden",
    "/allowed/x//y",
    "//other.example.com/allowed",
    "/\\other.example.com/allowed",
    "/allowed\\..\\forbidden",
    "/allowed/..\\forbidden",
    "/allowed/%5c..%5cforbidden",
    "/allowed/..%5cforbidden",
    "/allowed/%c0%ae%c0%ae/forbidden",
    "/allowed/%c0%af..%c0%afforbidden",
    "/allowed/%e0%80%ae%e0%80%ae/forbidden",
    "/allowed/%ef%bc%8e%ef%bc%8e/forbidden",
    "/allowed/%e2%80%a5/forbidden",
    "/allowed/%00",
    "/allowed%00/../forbidden",
    "/allowed/%0d%0aHost:%20other.example.com",
    "/allowed/%0a",
    "/allowed/%7f",
    "/%61llowed",
    "/allowe%64/x",
    "/allowed/%u002e%u002e/forbidden",
    "/allowed/%",
    "/allowed/%2",
    "/allowed/%zz",
    "/allowed/ ../forbidden",
    "/allowed/%20..%20/forbidden",
    "/allowed/...",
    "/allowed/.. /forbidden",
    "/allowed#/../forbidden",
    "/allowed/\u00e9",
    "/allowed/\x7f",
    "/allowed/\x01",
    "/allowed/\tx",
    '/allowed/"x"',
    "/allowed/<x>",
    "/allowed/{x}",
    "/allowed/^x",
    "/allowed/`x`",
    "/forbidden?/allowed",
    "/?/allowed",
    "?/allowed",
    "allowed",
    "/forbidden%3f/../allowed",
    "/forbidden%23/allowed",
]


@pytest.mark.parametrize("path", PATHS)
def test_it_is_not_an_allowed_path(lab: Harness, path: str) -> None:
    for client, target in (
        (lab.secured("api.example.com"), path),
        (lab.client(), f"http://api.example.com{path}"),
    ):
        answer = client.ask(get(target, "api.example.com"))
        assert answer.status in (400, 403), answer.status
    assert lab.requests == []


@pytest.mark.parametrize(
    "path",
    [
        "/allowed",
        "/allowed/",
        "/allowed/x?y=../..&z=%2e%2e//",
        "/allowed/@scope%2fname",
        "/allowed/a.b..c",
        "/allowed/%C3%A9",
        "/allowed?http://other.example.com/",
        "/allowed/(x)*,;".replace(";", "!"),
    ],
)
def test_an_allowed_path_arrives_byte_for_byte(lab: Harness, path: str) -> None:
    assert lab.secured("api.example.com").ask(get(path, "api.example.com")).status == 200
    assert lab.client().ask(get(f"http://api.example.com{path}", "api.example.com")).status == 200
    assert [seen.target for seen in lab.requests] == [path, path]


@pytest.mark.parametrize(
    "method",
    ["POST", "DELETE", "PUT", "get", "Get", "GETX", "G ET", "TRACE", "CONNECT", "OPTIONS", "HEAD", "M" * 40],
)
def test_only_the_routes_methods_pass(lab: Harness, method: str) -> None:
    lab.publish("agent-a", [pinned("api.example.com", path_allowlist=["/allowed"], methods=["GET"])])
    answer = lab.secured("api.example.com").ask(request(method, "/allowed", "api.example.com"))
    assert answer.status in (400, 403, 405), answer.status
    assert lab.requests == []


def test_trace_is_refused_where_all_methods_are_allowed(lab: Harness) -> None:
    assert (
        lab.secured("secret.example.com").ask(request("TRACE", "/allowed", "secret.example.com")).status
        == 405
    )
    assert lab.requests == []


@pytest.mark.parametrize(
    "name", ["X-HTTP-Method-Override", "X-Http-Method", "x-method-override", "X_HTTP_Method"]
)
def test_a_header_does_not_change_the_method_afterwards(lab: Harness, name: str) -> None:
    lab.publish("agent-a", [pinned("api.example.com", path_allowlist=["/allowed"], methods=["POST"])])
    lab.secured("api.example.com").ask(
        request("POST", "/allowed", "api.example.com", f"{name}: DELETE", "Content-Length: 0")
    )
    assert "DELETE" not in str(lab.requests[0].headers)


# --- what an origin may believe more than the first line and the Host header

ELSEWHERE = "elsewhere-3f9c"
OVERRIDES = [
    "X-Original-URL",
    "x-original-url",
    "X_Original_URL",
    "X.Original.URL",
    "X-Rewrite-URL",
    "X-Original-URI",
    "X-Original-Path",
    "X-Forwarded-Path",
    "X-Forwarded-Uri",
    "X-Forwarded-Prefix",
    "X-Envoy-Original-Path",
    "SCRIPT_NAME",
    "Path-Info",
    "X-Forwarded-Host",
    "X_FORWARDED_HOST",
    "X-Forwarded-Server",
    "X-Forwarded-Port",
    "X-Host",
    "X-Original-Host",
    "X-HTTP-Host-Override",
    "Forwarded",
]
HOST = "secret.example.com"
LIMITS: dict[str, dict[str, object]] = {
    "paths": {"path_allowlist": ["/allowed"]},
    "methods": {"methods": ["GET"]},
    "a credential": {"auth": {"scheme": "Bearer", "token_ref": "CANARY"}},
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=list(LIMITS))
def test_a_header_does_not_aim_the_request_elsewhere(lab: Harness, limits: dict[str, object]) -> None:
    """Asked again and again, most of these requests find a kept connection and could take the fast path."""
    lab.publish("agent-a", [pinned(HOST, **limits)])
    client = lab.secured(HOST)
    for name in OVERRIDES:
        for _ in range(2):
            client.ask(get("/allowed", HOST, f"{name}: {ELSEWHERE}", "X-Mine: kept"))
    assert [name for seen in lab.requests for name, value in seen.headers if value == ELSEWHERE] == []
    assert [seen.values("x-mine") for seen in lab.requests] == [["kept"]] * len(OVERRIDES) * 2


@pytest.mark.parametrize("name", ["X-Forwarded-For", "X-Request-Id", "Referer", "Origin"])
def test_a_header_that_aims_nowhere_arrives(lab: Harness, name: str) -> None:
    lab.publish("agent-a", [pinned(HOST, path_allowlist=["/allowed"], methods=["GET"])])
    lab.secured(HOST).ask(get("/allowed", HOST, f"{name}: {ELSEWHERE}"))
    assert lab.requests[0].values(name) == [ELSEWHERE]


@pytest.mark.parametrize(
    "name", ["X-Amz-Copy-Source", "x_amz_copy_source", "X-Ms-Copy-Source", "X-Copy-From", "Destination"]
)
def test_a_second_path_is_refused_where_paths_are_limited(lab: Harness, name: str) -> None:
    """As are more of them, on a connection that has served others."""
    client = lab.secured("api.example.com")
    assert client.ask(get("/allowed", "api.example.com")).status == 200
    for method in ("PUT", "GET"):
        answer = client.ask(request(method, "/allowed/x", "api.example.com", f"{name}: /forbidden"))
        assert (answer.status, answer.reason) == (403, "second-path")
        assert name.lower().replace("_", "-") in answer.json["message"]
    assert [seen.target for seen in lab.requests] == ["/allowed"]
