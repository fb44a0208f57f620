"""Attempts to see the proxy's credential, to spend it elsewhere, or to log in as somebody else beside it."""

from __future__ import annotations

import base64

import pytest

from tests.attack.conftest import AGENT_CREDENTIAL, Allowed
from tests.attack.test_authority import hello
from tests.support import origins
from tests.support.origins import Seen, Send
from tests.support.proxy_harness import ADDRESSES, SECRET, Harness, connect, eventually, get, pinned, request

pytestmark = pytest.mark.process
HOST = "secret.example.com"


LESS_USUAL = [
    "X-Auth-Key",
    "X_Authorization",
    "X-Session-Token",
    "DD-Application-Key",
    "Ocp-Apim-Subscription-Key",
    "X-Shopify-Access-Token",
    "X-Ms-Authorization-Auxiliary",
    "Cookie2",
    "X-Remote-User",
    "X_Forwarded_User",
]
NO_CREDENTIALS = [
    "Idempotency-Key",
    "Mcp-Session-Id",
    "Npm-Auth-Type",
    "X-Atlassian-Token",
    "X-Goog-Encryption-Key",
]


def authorizations(lab: Harness) -> list[str]:
    return [value for seen in lab.requests for value in seen.values("authorization")]


def test_the_credential_goes_to_the_allowed_host_and_path(lab: Harness) -> None:
    assert lab.secured(HOST).ask(get("/allowed", HOST)).status == 200
    assert authorizations(lab) == [f"Bearer {SECRET}"]


@pytest.mark.parametrize(
    "headers",
    [
        (f"Authorization: Bearer {AGENT_CREDENTIAL}",),
        (f"authorization: Bearer {AGENT_CREDENTIAL}",),
        (f"AUTHORIZATION: Bearer {AGENT_CREDENTIAL}", f"Authorization: Basic {AGENT_CREDENTIAL}"),
        (f"Proxy-Authorization: Bearer {AGENT_CREDENTIAL}",),
        (f"Cookie: session={AGENT_CREDENTIAL}",),
        (f"X-Api-Key: {AGENT_CREDENTIAL}",),
        (f"x_api_key: {AGENT_CREDENTIAL}",),
        (f"Private-Token: {AGENT_CREDENTIAL}",),
        (f"X-Auth-Token: {AGENT_CREDENTIAL}",),
        (f"X-Private: {AGENT_CREDENTIAL}", "Connection: x-private"),
        *((f"{name}: {AGENT_CREDENTIAL}",) for name in LESS_USUAL),
    ],
)
def test_the_agents_own_credential_is_taken_out(lab: Harness, headers: tuple[str, ...]) -> None:
    lab.secured(HOST).ask(get("/allowed", HOST, *headers))
    assert authorizations(lab) == [f"Bearer {SECRET}"]
    assert AGENT_CREDENTIAL not in str(lab.requests[0].headers)


def test_what_is_a_key_or_a_token_of_another_kind_travels_on(lab: Harness) -> None:
    lab.secured(HOST).ask(get("/allowed", HOST, *(f"{name}: needed" for name in NO_CREDENTIALS)))
    assert [lab.requests[0].values(name) for name in NO_CREDENTIALS] == [["needed"]] * len(NO_CREDENTIALS)


@pytest.mark.parametrize("listed", ["authorization", "Authorization, close", "cookie"])
def test_connection_cannot_name_a_credential_header(lab: Harness, listed: str) -> None:
    assert lab.secured(HOST).ask(get("/allowed", HOST, f"Connection: {listed}")).status == 400
    assert lab.requests == []


@pytest.mark.parametrize(
    "name",
    [
        "access_token",
        "private_token",
        "api_key",
        "ACCESS_TOKEN",
        "x=1&token",
        "x=1;token",
        "%61ccess_token",
        "access%5Ftoken",
        "access%5ftok%65n",
        "%2561ccess_token",
        "access%255Ftoken",
        "access+token",
        "access.token",
        "access-token",
        "accessToken",
        "access_token[]",
        "access_token%5B0%5D",
        "access_token%00x",
        "x%26access_token",
        "key",
        "apikey",
        "X-Api-Key",
        "client_secret",
        "id_token",
        "auth",
        "Authorization",
        "password",
        "sig",
        "Signature",
        "AWSAccessKeyId",
        "X-Amz-Sign%61ture",
        "X-Goog-Credential",
        "sessionid",
        "login%5Ftoken",
        "user_key",
        "security-token",
        "hapikey",
        "auth_password",
    ],
)
def test_a_token_in_the_url_is_refused(lab: Harness, name: str) -> None:
    answer = lab.secured(HOST).ask(get(f"/allowed?{name}={AGENT_CREDENTIAL}", HOST))
    assert (answer.status, answer.reason) == (403, "credential-in-url")
    assert "without" in answer.json["message"]
    assert lab.requests == []


@pytest.mark.parametrize(
    "query",
    [
        "page_token=x",
        "next-token=x",
        "continuation-token=x",
        "session_id=x",
        "sessionId=x",
        "projectKey=x",
        "keys=x",
        "author=x",
        "design=x",
        "q=token%3Dx%26key%3Dx",
        "q=access_token",
        "a&b=",
        "%",
    ],
)
def test_a_parameter_that_is_no_credential_passes(lab: Harness, query: str) -> None:
    assert lab.secured(HOST).ask(get(f"/allowed?{query}", HOST)).status == 200
    assert [seen.target for seen in lab.requests] == [f"/allowed?{query}"]


@pytest.mark.parametrize(
    "query",
    ["a" + "&a" * 1000, ";" * 1000, "a%26" * 1000, "a%2526" * 1000, "a=1" + "&%C3" * 1000],
    ids=["plain", "empty", "escaped", "escaped twice", "broken"],
)
def test_more_parameters_than_can_be_looked_at_are_refused(lab: Harness, query: str) -> None:
    answer = lab.secured(HOST).ask(get(f"/allowed?{query}", HOST))
    assert (answer.status, answer.reason) == (400, "too-many-parameters")
    assert lab.requests == []


def test_many_parameters_are_looked_at_to_the_last(lab: Harness) -> None:
    client = lab.secured(HOST)
    assert client.ask(get("/allowed?a" + "&a" * 999, HOST)).status == 200
    assert client.ask(get("/allowed?a" + "&a" * 998 + "&token=x", HOST)).reason == "credential-in-url"


def test_a_credential_in_a_trailer_is_refused(lab: Harness) -> None:
    body = f"0\r\nAuthorization: Bearer {AGENT_CREDENTIAL}\r\n\r\n".encode()
    message = request("POST", "/allowed", HOST, "Transfer-Encoding: chunked", body=body)
    assert lab.secured(HOST).ask(message).status == 400
    assert not any(seen.whole for seen in lab.requests)


def test_it_never_travels_over_http(lab: Harness) -> None:
    answer = lab.client().ask(get(f"http://{HOST}/allowed", HOST))
    assert (answer.status, answer.reason) == (403, "plain-http")
    assert lab.requests == []


@pytest.mark.parametrize("path", ["/forbidden", "/allowed/../forbidden", "/allowedx"])
def test_it_does_not_go_to_other_paths(lab: Harness, path: str) -> None:
    assert lab.secured(HOST).ask(get(path, HOST)).status in (400, 403)
    assert lab.requests == []


IMPOSTORS = [
    "expired-certificate.example.com",
    "wrong-certificate.example.com",
    "unknown-authority.example.com",  # which has the same name as the trusted one, but another key
]


def told(lab: Harness) -> bytes:
    """All that any origin was sent."""
    return b"".join(bytes(connection.raw) for connection in lab.origins.connections)


@pytest.mark.parametrize("host", IMPOSTORS)
def test_it_does_not_go_to_an_origin_that_cannot_prove_its_name(lab: Harness, host: str) -> None:
    auth = {"scheme": "Bearer", "token_ref": "CANARY"}
    lab.publish("agent-a", [pinned(host, auth=auth)])
    answer = lab.secured(host).ask(get("/allowed", host))
    assert (answer.status, answer.reason) == (502, "upstream-certificate")
    assert told(lab) == b""


@pytest.mark.parametrize("host", IMPOSTORS)
def test_neither_does_what_the_agent_sends_where_there_is_no_credential(lab: Harness, host: str) -> None:
    lab.publish("agent-a", [pinned(host, methods=["GET"])])
    message = get("/allowed", host, f"X-Key: {AGENT_CREDENTIAL}")
    for _ in range(2):
        assert lab.secured(host).ask(message).reason == "upstream-certificate"
    assert told(lab) == b""


@pytest.mark.parametrize("host", [*IMPOSTORS, "other.example.com"])
@pytest.mark.parametrize(
    "more", [{}, {"auth": {"scheme": "Bearer", "token_ref": "CANARY"}}], ids=["fast path", "credential"]
)
def test_a_proof_does_not_count_for_another_address(lab: Harness, host: str, more: dict[str, object]) -> None:
    """The first one is verified and its connection kept; then the route leads somewhere else."""
    name = "secret.example.com"
    lab.publish("agent-a", [pinned(name, path_allowlist=["/allowed"], **more)])
    client = lab.secured(name)
    assert [client.ask(get("/allowed", name)).status for _ in range(3)] == [200] * 3
    before = told(lab)
    elsewhere = {"host": name, "path_allowlist": ["/allowed"], "pinned_addresses": [ADDRESSES[host]], **more}
    lab.publish("agent-a", [elsewhere])
    assert client.ask(get("/allowed", name)).reason == "upstream-certificate"
    assert told(lab) == before


def test_a_redirect_is_handed_back_and_not_followed(lab: Harness, allowed: Allowed) -> None:
    allowed[HOST] = ("/redirect",)
    lab.publish("agent-a", [pinned(HOST, auth={"scheme": "Bearer", "token_ref": "CANARY"})])
    answer = lab.secured(HOST).ask(get("/redirect", HOST))
    assert (answer.status, answer.headers["location"]) == (302, "https://other.example.com/stolen")
    assert [seen.origin for seen in lab.requests] == [HOST]


@pytest.mark.parametrize(
    "text", ["${CANARY}", "$CANARY", "{{CANARY}}", "%CANARY%", "CANARY", "$(printenv CANARY)"]
)
def test_a_placeholder_is_just_text(lab: Harness, text: str) -> None:
    answer = lab.secured("api.example.com").ask(get("/allowed", "api.example.com", f"X-Text: {text}"))
    assert answer.status == 200
    assert lab.requests[0].values("x-text") == [text]


@pytest.mark.parametrize("name", ["MISSING", "PATH", "BOTTLE_HOME", "EGRESS_UPSTREAM_CA", "EMPTY"])
def test_a_secret_that_cannot_be_had_fails_closed(lab: Harness, name: str) -> None:
    lab.publish("agent-a", [pinned(HOST, auth={"scheme": "Bearer", "token_ref": name})])
    answer = lab.secured(HOST).ask(get("/allowed", HOST))
    assert (answer.status, answer.reason) == (502, "credential-missing")
    assert lab.requests == []
    assert name not in answer.body.decode()
    assert name in str(lab.control("GET", "/status")["bottles"]["agent-a"]["credential_problems"])


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_secret_file_that_others_can_read_is_not_used(lab: Harness, mode: int) -> None:
    path = lab.home / "secrets" / "LOOSE"
    path.parent.mkdir(exist_ok=True)
    path.write_text(SECRET + "\n")
    path.chmod(mode)
    lab.publish("agent-a", [pinned(HOST, auth={"scheme": "Bearer", "token_ref": "LOOSE"})])
    assert lab.secured(HOST).ask(get("/allowed", HOST)).reason == "credential-missing"
    path.chmod(0o600)
    assert lab.secured(HOST).ask(get("/allowed", HOST)).status == 200
    assert authorizations(lab) == [f"Bearer {SECRET}"]


@pytest.mark.parametrize(
    ("auth", "name", "value"),
    [
        ({"scheme": "token"}, "authorization", f"token {SECRET}"),
        ({"scheme": "Basic"}, "authorization", "Basic Y2FuYXJ5LTdjMWYwZTliNWQ="),
        ({"scheme": "header", "header": "X-Service-Key"}, "x-service-key", SECRET),
    ],
)
def test_every_scheme_replaces_what_the_agent_sent(
    lab: Harness, auth: dict[str, str], name: str, value: str
) -> None:
    lab.publish("agent-a", [pinned(HOST, auth={**auth, "token_ref": "CANARY"})])
    for header in (name, name.upper(), name.replace("-", "_")):
        lab.secured(HOST).ask(get("/allowed", HOST, f"{header}: {AGENT_CREDENTIAL}"))
        assert lab.requests[-1].values(name) == [value]


def test_another_bottle_does_not_get_it(lab: Harness) -> None:
    answer = lab.secured(HOST, slug="agent-b").ask(get("/allowed", HOST))
    assert answer.status == 403
    assert lab.requests == []


# --- getting it back


REFLECTED = [pinned(HOST, auth={"scheme": "Bearer", "token_ref": "CANARY"})]


def test_an_origin_that_repeats_it_does_not_give_it_away(lab: Harness, allowed: Allowed) -> None:
    allowed[HOST] = ("/reflect",)
    lab.publish("agent-a", REFLECTED)
    answer = lab.secured(HOST).ask(get("/reflect", HOST))
    assert (answer.status, b"authorization=Bearer" in answer.body) == (200, True)
    assert SECRET not in str(answer.headers)
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("size", [1, 7])
def test_it_is_found_across_the_pieces_of_an_answer(lab: Harness, allowed: Allowed, size: int) -> None:
    allowed[HOST] = ("/reflect-in-pieces",)
    lab.publish("agent-a", REFLECTED)
    answer = lab.secured(HOST).ask(get(f"/reflect-in-pieces/{size}", HOST))
    assert answer.body.startswith(b"Bearer ")


@pytest.mark.parametrize("name", ["Range", "range", "X-Ms-Range", "Request-Range", "Request_Range"])
def test_it_cannot_be_had_in_two_halves(lab: Harness, allowed: Allowed, name: str) -> None:
    allowed[HOST] = ("/reflect-in-part",)
    lab.publish("agent-a", REFLECTED)
    client, middle = lab.secured(HOST), len(f"Bearer {SECRET}") - 5
    asked = [f"bytes=0-{middle - 1}", f"bytes={middle}-99"]
    halves = [client.ask(get("/reflect-in-part", HOST, f"{name}: {part}", 'If-Range: "x"')) for part in asked]
    assert [half.body for half in halves] == [b"Bearer " + b"*" * len(SECRET)] * 2


WITH_A_WORD_BEFORE = {
    "a word before it": f"Bot {SECRET}",
    "a long word before it": f"GenieKey {SECRET}",
    "a name before it": f"Token token={SECRET}",
    "a name before it, in quotes": f'Token token="{SECRET}"',
    "a user name before it": f"Basic {base64.b64encode(f'operator:{SECRET}'.encode()).decode()}",
}


@pytest.fixture(params=WITH_A_WORD_BEFORE.values(), ids=WITH_A_WORD_BEFORE)
def whole_header(lab: Harness, request: pytest.FixtureRequest) -> None:
    """The secret is the whole value of Authorization; the canary is the part of it that counts."""
    path = lab.home / "secrets" / "HEADER"
    path.parent.mkdir(exist_ok=True)
    path.write_text(request.param)
    path.chmod(0o600)
    auth = {"scheme": "header", "header": "Authorization", "token_ref": "HEADER"}
    lab.publish(
        "agent-a",
        [pinned(HOST, path_allowlist=["/allowed"], auth=auth), pinned("api.example.com", methods=["GET"])],
    )


@pytest.mark.usefixtures("whole_header")
def test_the_token_within_a_header_does_not_come_back(lab: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def name_the_token(_seen: Seen, send: Send) -> bool:
        body = f"unknown token {SECRET}".encode()
        await send(b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        return True

    monkeypatch.setitem(origins.ANSWERS, "allowed", name_the_token)
    answer = lab.secured(HOST).ask(get("/allowed", HOST))
    assert answer.body == b"unknown token " + b"*" * len(SECRET)


@pytest.mark.usefixtures("whole_header")
def test_the_token_within_a_header_cannot_be_sent_out(lab: Harness) -> None:
    answer = lab.secured("api.example.com").ask(get(f"/allowed?x={SECRET}", "api.example.com"))
    assert (answer.status, answer.reason) == (403, "dlp")


# --- getting it noted


@pytest.mark.parametrize("domain", ["no-route.example.org", "unsearched.example.com"])
@pytest.mark.parametrize("first", [b"SSH-2.0-1\r\n", hello("other.example.com")], ids=["SSH", "another name"])
def test_a_host_that_holds_it_is_not_in_the_log(lab: Harness, domain: str, first: bytes) -> None:
    """The fixture looks for it there; a tunnel and a connection that was opened end in two ways."""
    lab.publish("agent-a", [*REFLECTED, pinned("*.unsearched.example.com", dlp={"out": False})])
    before, noted, client = len(lab.records()), len(lab.log()), lab.client()
    assert client.ask(connect(f"{SECRET}.{domain}")).status == 200
    client.send(first)
    client.everything()
    eventually(lambda: lab.records()[before:], "its record")
    assert "(concealed)" in lab.log()[noted:]


@pytest.mark.parametrize("where", ["target", "header", "body"])
def test_an_agent_that_knows_it_cannot_send_it_out(lab: Harness, where: str) -> None:
    lab.publish("agent-a", [*REFLECTED, pinned("api.example.com", path_allowlist=["/allowed"])])
    host = "api.example.com"
    message = {
        "target": get(f"/allowed?x={SECRET}", host),
        "header": get("/allowed", host, f"X-Note: {SECRET}"),
        "body": request("POST", "/allowed", host, "Content-Length: 17", body=SECRET.encode()),
    }[where]
    answer = lab.secured(host).ask(message)
    assert (answer.status, answer.reason, "ask" in answer.json) == (403, "dlp", False)
    assert not any(seen.whole for seen in lab.requests)
