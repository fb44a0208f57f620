"""/why on http://_egress.local says what the real request is told, sends nothing, and repeats no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from egress.dlp.scanner import Scanner
from tests.support.proxy_harness import SECRET, Answer, Harness, get, pinned, request, running_lab
from tests.support.token_examples import EXAMPLES

pytestmark = pytest.mark.process
TOKEN = EXAMPLES["github-token"]
CANARY = {"scheme": "Bearer", "token_ref": "CANARY"}
OVER = {"granted_at": "2020-01-01T00:00:00Z", "expires_at": "2020-01-01T01:00:00Z"}
ROUTES = [
    pinned("api.example.com", path_allowlist=["/allowed"], methods=["GET"]),
    pinned("other.example.com", path_allowlist=["/allowed"], dlp={"out": False}),
    pinned("secret.example.com", path_allowlist=["/allowed"], auth=CANARY),
    pinned("bare.example.com"),
    pinned("*.bare.example.com"),
    pinned("gated.example.com"),
    pinned("over.example.com", lease=OVER),
]
GATE = [route["host"] for route in ROUTES if route["host"] != "gated.example.com"]


def ask_why(lab: Harness, url: str, **more: str) -> Answer:
    query = "".join(f"&{name}={quote(value, safe='')}" for name, value in more.items())
    return lab.client().ask(
        get(f"http://_egress.local/why?url={quote(url, safe='')}{query}", "_egress.local")
    )


def really(lab: Harness, method: str, url: str) -> Answer:
    """The request itself, byte for byte as it is written."""
    parts = urlsplit(url)
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    if parts.scheme == "http":
        return lab.client().ask(request(method, f"http://{parts.netloc}{path}", parts.netloc))
    client = lab.client()
    where = parts.netloc if ":" in parts.netloc else f"{parts.netloc}:443"
    answer = client.ask(f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
    if answer.status != 200:
        return answer
    return lab.wrap(client, parts.hostname).ask(request(method, path, parts.netloc))


def shown(told: dict[str, Any]) -> dict[str, Any]:
    """What both answers have: a refused CONNECT knows neither method nor path."""
    return {name: told.get(name) for name in ("reason", "message", "ask", "kind", "where")}


@pytest.mark.parametrize(
    ("method", "url", "reason"),
    [
        ("GET", "https://api.example.com/allowed/x?q=1#part", "ok"),
        ("GET", "http://api.example.com/allowed", "ok"),
        ("GET", "https://other.example.com/allowed?q=%41", "ok"),
        ("GET", "https://secret.example.com/allowed?page_token=x", "ok"),
        ("GET", "https://bare.example.com", "ok"),
        ("GET", "https://bare.example.com:443/a/../b?access_token=x", "ok"),  # in a tunnel, nobody looks
        ("GET", "https://new.example.org/repos/x", "no-route"),
        ("GET", "http://new.example.org?q=1", "no-route"),
        ("GET", "https://localhost/", "no-route"),
        ("GET", "https://over.example.com/x", "expired"),
        ("GET", "https://api.example.com/other", "path"),
        ("DELETE", "https://api.example.com/allowed", "method"),
        ("TRACE", "https://api.example.com/allowed", "method"),
        ("GET", "https://gated.example.com/x", "gate"),
        ("GET", "http://gated.example.com/x", "gate"),
        ("GET", "https://bare.example.com:8443/", "port"),
        ("GET", "http://api.example.com:8080/allowed", "port"),
        ("GET", "http://secret.example.com/allowed", "plain-http"),
        ("GET", "https://secret.example.com/allowed?access_token=x", "credential-in-url"),
        ("GET", "https://secret.example.com/allowed?%61pi%255fkey=x", "credential-in-url"),
        ("GET", "https://secret.example.com/allowed?" + "a&" * 1001, "too-many-parameters"),
        ("GET", "https://secret.example.com/allowed/../x", "bad-path"),
        ("GET", "https://api.example.com/allowed/%2e%2e/x", "bad-path"),
        ("GET", "http://bare.example.com/a//b", "bad-path"),
        ("GET", "https://10.0.0.1/", "bad-host"),
        ("GET", "http://user:pass@api.example.com/allowed", "bad-host"),
        ("GET", "https://api.example.com:x/allowed", "bad-host"),
        ("GE_T", "https://api.example.com/allowed", "bad-head"),
        ("GET", f"https://api.example.com/allowed?q={TOKEN}", "dlp"),
        ("GET", f"https://secret.example.com/allowed/{SECRET}", "dlp"),
        ("GET", f"https://new.example.org/{SECRET}", "dlp"),
        ("GET", f"https://{SECRET}.bare.example.com/", "dlp"),
        ("GET", f"http://bare.example.com/?q={TOKEN}", "dlp"),
    ],
)
@pytest.mark.usefixtures("canary_stays")
def test_it_says_what_the_real_request_is_told(lab: Harness, method: str, url: str, reason: str) -> None:
    lab.publish("agent-a", ROUTES, gate=GATE)
    told = ask_why(lab, url, method=method).json
    assert (lab.requests, lab.asked_names(), lab.dialled()) == ([], [], []), "nothing is sent"
    assert (told["reason"], told["allowed"]) == (reason, reason == "ok")
    real = really(lab, method, url)
    if reason == "ok":
        assert (real.status, real.reason) == (200, "")
    else:
        assert shown(told) == shown(real.json)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (f"https://api.example.com/allowed?q={SECRET}", "dlp"),
        (f"https://{SECRET}.example.org/", "dlp"),
        (f"https://other.example.com/allowed/{SECRET}", "ok"),
        (f"https://other.example.com/{SECRET}", "path"),
        (f"https://bare.example.com/{SECRET.encode().hex()}", "ok"),
        (f"https://{SECRET}..example.org/", "bad-host"),
        (f"https://user:{SECRET}@api.example.com/", "bad-host"),
        (f"https://secret.example.com/allowed?token={SECRET}", "credential-in-url"),
    ],
)
@pytest.mark.usefixtures("canary_stays")
def test_it_repeats_no_secret(lab: Harness, url: str, reason: str) -> None:
    lab.publish("agent-a", ROUTES, gate=GATE)
    answer = ask_why(lab, url)
    assert (answer.status, answer.json["reason"]) == (200, reason)
    assert Scanner([SECRET]).literals.first(answer.body) is None
    assert "ask" not in answer.json
    answer = ask_why(lab, "https://bare.example.com/", method=SECRET)
    assert Scanner([SECRET]).literals.first(answer.body) is None


@pytest.mark.parametrize(
    "url",
    [
        f"https://api.example.com/allowed?q={SECRET}",
        f"http://new.example.org/{SECRET}",
        f"https://{SECRET}.bare.example.com/",
        f"https://other.example.com/allowed/{SECRET}",  # concealed, which says as much
        f"https://bare.example.com/{SECRET.encode().hex()}",
    ],
)
@pytest.mark.usefixtures("canary_stays")
def test_who_guesses_a_secret_by_asking_is_seen(lab: Harness, url: str) -> None:
    lab.publish("agent-a", ROUTES, gate=GATE)
    refused = refused_so_far(lab)
    for each in ("https://api.example.com/allowed?q=canary-nope", url):
        assert ask_why(lab, each).status == 200
    wrong, right = lab.records()[-2:]
    assert (wrong["verdict"], "finding" in wrong) == ("local", False)
    is_let_out = url.startswith(("https://bare.", "https://other."))  # unseen in a tunnel, or unsearched
    verdict = "local" if is_let_out else "refused"
    assert (right["verdict"], right["reason"], right["status"]) == (verdict, "dlp", 200)
    assert right["finding"] == {"kind": "provisioned-secret", "where": "url"}
    assert (right["host"], right["path"], right["route"]) == ("_egress.local", "/why", None)
    assert "example" not in str(right)
    assert refused_so_far(lab) == refused + (not is_let_out)


def test_what_an_operator_lets_out_is_noted_as_no_refusal(lab: Harness) -> None:
    lab.publish("agent-a", [pinned("api.example.com", path_allowlist=["/allowed"], dlp={"out": False})])
    refused = refused_so_far(lab)
    assert ask_why(lab, f"https://api.example.com/allowed?q={TOKEN}").json["allowed"] is True
    noted = lab.records()[-1]
    assert (noted["verdict"], noted["reason"], refused_so_far(lab)) == ("local", "dlp", refused)


def refused_so_far(lab: Harness) -> int:
    return int(lab.control("GET", "/status")["bottles"]["agent-a"]["counters"].get("refused", 0))


def test_a_credential_that_is_no_known_secret_is_not_repeated_either(lab: Harness) -> None:
    for url in ("https://secret.example.com/allowed?access_token=hush", "https://me:hush@api.example.com/"):
        assert b"hush" not in ask_why(lab, url).body


def test_it_knows_that_a_credential_is_missing(lab: Harness) -> None:
    late = {"scheme": "Bearer", "token_ref": "SET_LATER"}
    lab.publish("agent-a", [pinned("secret.example.com", auth=late)])
    url, file = "https://secret.example.com/", lab.home / "secrets" / "SET_LATER"
    told = ask_why(lab, url).json
    assert (told["allowed"], told["reason"]) == (False, "credential-missing")
    assert shown(told) == shown(really(lab, "GET", url).json)
    file.parent.mkdir(exist_ok=True)
    file.touch(0o600)
    try:
        file.write_text("a-late-secret")
        assert (ask_why(lab, url).json["allowed"], really(lab, "GET", url).status) == (True, 200)
    finally:
        file.unlink()


def test_it_knows_that_the_authority_of_the_bottle_cannot_be_read(tmp_path: Path) -> None:
    with running_lab(tmp_path / "h") as lab:
        lab.publish("agent-a", ROUTES, gate=GATE)
        (lab.home / "bottles" / "agent-a" / "ca-key.pem").write_text("junk")
        for url in ("https://api.example.com/allowed", "https://new.example.org/"):
            told = ask_why(lab, url).json
            assert (told["allowed"], told["reason"]) == (False, "no-ca")
            assert shown(told) == shown(really(lab, "GET", url).json)
        for url in ("https://bare.example.com/", "http://api.example.com/allowed"):
            assert ask_why(lab, url).json["allowed"], "where nobody looks inside TLS, none is needed"


def test_it_knows_that_a_lease_is_used_up_and_uses_none(lab: Harness) -> None:
    lease = {"max_uses": 1, "granted_at": "2099-01-02T00:00:00Z"}
    hosts = {"api.example.com": ["GET"], "bare.example.com": []}
    lab.publish("agent-a", [pinned(host, methods=hosts[host], lease=lease) for host in hosts])
    for host in hosts:
        url = f"https://{host}/docs"
        assert [ask_why(lab, url).json["allowed"] for _ in range(2)] == [True, True]
        assert really(lab, "GET", url).status == 200
        told = ask_why(lab, url).json
        assert (told["allowed"], told["reason"], told["ask"]["tool"]) == (False, "used-up", "egress-block")
        assert shown(told) == shown(really(lab, "GET", url).json)


@pytest.mark.parametrize(
    ("question", "because"),
    [
        ("", "nothing else"),
        ("?method=GET", "nothing else"),
        ("?url=https://a.com/?x=1&y=2", "nothing else"),
        ("?url=https://a.com/&url=https://b.com/", "nothing else"),
        ("?url=ftp://a.com/", "not an http or https URL"),
        ("?url=a.com", "not an http or https URL"),
        ("?url=https://", "not an http or https URL"),
        ("?url=https:///x", "not an http or https URL"),
        ("?url=https://a.com/%0d%0aX-A:b", "sent encoded"),
        ("?url=https://a.com/&method=GET%20/x", "sent encoded"),
        ("?url=" + quote("https://" + "\u0301" * 1000 + ".example.com/"), "beyond ASCII"),
        ("?url=http://supervise/mcp", "needs no route"),
        ("?url=https://_egress.local:443/", "needs no route"),
        ("?url=http://supervise./mcp", "needs no route"),
        ("?url=https://SUPERVISE.:443/mcp", "needs no route"),
    ],
)
def test_a_question_that_makes_no_sense_is_answered_400(lab: Harness, question: str, because: str) -> None:
    answer = lab.client().ask(get(f"http://_egress.local/why{question}", "_egress.local"))
    assert (answer.status, answer.reason) == (400, "bad-url")
    assert because in answer.json["message"]


def test_it_looks_at_no_more_parameters_than_anybody_needs(lab: Harness) -> None:
    answer = lab.client().ask(get("http://_egress.local/why?" + "&a=b" * 1000, "_egress.local"))
    assert (answer.status, answer.reason) == (400, "too-many-parameters")
