"""Programs that speak HTTP: what is allowed arrives, what is not is explained to whoever runs them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.tool_env import BARE, DENIED, HTTP2, INSPECTED, PROGRAMS, Bottle, Finished, refusal_in

pytestmark = [pytest.mark.process, pytest.mark.tools]
PYTHON = ["requests", "httpx", "aiohttp"]
NODE = ["fetch", "undici"]


def curl(bottle: Bottle, *arguments: str, proxy: str = "") -> Finished:
    variables = {"HTTPS_PROXY": proxy, "https_proxy": proxy} if proxy else {}
    shown = ("--silent", "--show-error", "--max-time", "30", "--write-out", "\n%{http_code} %{http_version}")
    return bottle.run("curl", *shown, *arguments, **variables)


@pytest.fixture
def get(bottle: Bottle, request: pytest.FixtureRequest, program: str) -> Finished:
    """What `program` tells of one URL, as {status, body}."""

    def ask(url: str) -> dict[str, object]:
        if program in PYTHON:
            return bottle.run(sys.executable, PROGRAMS / f"with_{program}.py", url).json
        node: Path = request.getfixturevalue("node")
        return bottle.run(node, PROGRAMS / f"with_{program}.mjs", url, NODE_USE_ENV_PROXY="1").json

    return ask


@pytest.mark.parametrize("way", ["by_token", "by_socket"])
@pytest.mark.parametrize("host", [INSPECTED, BARE])
def test_curl_gets_what_is_allowed(bottle: Bottle, host: str, way: str) -> None:
    proxy = getattr(bottle.workshop, way)
    body, _, status = curl(bottle, f"https://{host}/echo/allowed?q=1", proxy=proxy).out.rpartition("\n")
    assert (json.loads(body)["path"], status) == ("/echo/allowed?q=1", "200 1.1")


def test_curl_posts_a_body_after_waiting_for_100_continue(bottle: Bottle) -> None:
    content = "x" * 2_000_000
    (bottle.home / "body").write_text(content)
    done = curl(bottle, "--data-binary", "@body", f"https://{INSPECTED}/echo/allowed")
    assert json.loads(done.out.rpartition("\n")[0])["body"] == content


@pytest.mark.parametrize("way", ["by_token", "by_socket"])
@pytest.mark.parametrize("url", [f"https://{INSPECTED}/echo/forbidden", f"https://{DENIED}/anything"])
def test_curl_shows_how_to_ask(bottle: Bottle, url: str, way: str) -> None:
    body, _, status = curl(bottle, url, proxy=getattr(bottle.workshop, way)).out.rpartition("\n")
    assert status == "403 1.1"
    ask = refusal_in(body)
    assert ask["tool"] == "egress-block"
    assert ask["arguments"]["host"] == url.split("/")[2]
    assert bottle.workshop.upstreams[INSPECTED].seen == []


def test_curl_without_a_token_is_told_to_send_one(bottle: Bottle) -> None:
    nobody = "http://127.0.0.1:" + bottle.workshop.by_token.rpartition(":")[2]
    done = curl(bottle, f"https://{INSPECTED}/echo/allowed", proxy=nobody)
    assert (done.code, "407" in done.err) == (56, True)
    assert bottle.workshop.upstreams[INSPECTED].seen == []


def test_curl_speaks_http_2_through_a_bare_tunnel(bottle: Bottle) -> None:
    body, _, status = curl(bottle, "--http2", f"https://{HTTP2}/any").out.rpartition("\n")
    assert (json.loads(body), status) == ({"http": "2", "path": "/any"}, "200 2")


def test_curl_asking_for_http_2_is_refused_in_words_too(bottle: Bottle) -> None:
    body, _, status = curl(bottle, "--http2", f"https://{DENIED}/any").out.rpartition("\n")
    assert (refusal_in(body)["arguments"]["host"], status) == (DENIED, "403 1.1")


@pytest.mark.parametrize("host", [INSPECTED, BARE])
@pytest.mark.parametrize("program", PYTHON + NODE)
def test_a_program_gets_what_is_allowed(get, host: str) -> None:
    told = get(f"https://{host}/echo/allowed")
    assert (told["status"], json.loads(told["body"])["path"]) == (200, "/echo/allowed")


@pytest.mark.parametrize("url", [f"https://{INSPECTED}/echo/forbidden", f"https://{DENIED}/anything"])
@pytest.mark.parametrize("program", PYTHON + NODE)
def test_a_program_gets_the_arguments_to_ask_with(get, bottle: Bottle, url: str) -> None:
    told = get(url)
    assert (told["status"], refusal_in(told["body"])["tool"]) == (403, "egress-block")
    assert bottle.workshop.upstreams[INSPECTED].seen == []
