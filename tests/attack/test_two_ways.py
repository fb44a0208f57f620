"""The fast path and the task make the same of every head: same answer, same bytes to the origin, same record.

Each is sent where there is no kept connection to the origin, where there is one, and where there is one and
the same fields came before under a harmless first line.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.attack.test_authority import ADDRESSES, HOSTS, PORTS, STRANGERS
from tests.attack.test_framing import HEADS, LINES
from tests.attack.test_fuzz import STARTS, heads, mutated, usual_heads
from tests.attack.test_paths import PATHS
from tests.support.proxy_harness import SECRET, Answer, Client, Harness, eventually, get, pinned, request
from tests.support.strategies import examples

pytestmark = pytest.mark.process
HOST = "api.example.com"
ROUTES = [
    pinned(HOST, path_allowlist=["/allowed"], methods=["GET", "HEAD", "POST"]),
    pinned("secret.example.com", auth={"scheme": "Bearer", "token_ref": "CANARY"}),  # which is looked for
]
START = b"GET /allowed HTTP/1.1\r\nHost: api.example.com\r\n"
HARMLESS = get("/allowed/before", HOST)
# Longer than most bodies that a head may promise: what is left of it then is no request.
AFTER = get("/allowed/after", HOST, "X-Pad: " + "x" * 6000)
TOKEN = "ghp_" + "a1B2" * 9

FIELDS = {
    "nothing more": (),
    "many": tuple(f"X-{number}: {number}" for number in range(100)),
    "too many": tuple(f"X-{number}: {number}" for number in range(130)),
    "long": ("X-Long: " + "x" * 5000,),
    "close": ("Connection: close",),
    "close, said to a proxy": ("Proxy-Connection: close",),
    "keep-alive": ("Connection: Keep-Alive", "Keep-Alive: timeout=5"),
    "most fields of this connection": ("Connection: " + ",".join(["x-a"] * 64), "X-A: 1"),
    "too many fields of this connection": ("Connection: " + ",".join(["x-a"] * 65), "X-A: 1"),
    "a field of this connection": ("Connection: x-private", "X-Private: yes", "X-Public: yes"),
    "a field of this connection that is none": ("Connection: authorization", "Authorization: Bearer x"),
    "of a proxy": ("Proxy-Authorization: Basic eDp5", "Via: 1.1 x", "X-Forwarded-For: 10.0.0.1"),
    "coding": ("Accept-Encoding: gzip, br, zstd", "TE: trailers"),
    "method override": ("X-HTTP-Method-Override: DELETE", "X_HTTP_Method: DELETE"),
    "websocket": ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                  "Sec-WebSocket-Version: 13", "Sec-WebSocket-Extensions: permessage-deflate"),
    "h2c": ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
    "upgrade without connection": ("Upgrade: h2c",),
    "empty body": ("Content-Length: 0",),
    "expectation": ("Expect: 100-continue",),
    "cookie": ("Cookie: a=b", "Authorization: Bearer mine"),
    "white space": ("X-A:   b  ", "X-B:", "X-C:\t"),
    "repeated": ("X-A: 1", "X-A: 2", "x-a: 3"),
    "other bytes": ("X-A: \xe9\xff",),
    "token": (f"X-A: {TOKEN}",),
    "secret": (f"X-A: {SECRET}",),
    "secret in base64": ("X-A: Y2FuYXJ5LTdjMWYwZTliNWQ=",),
}  # fmt: skip
METHODS = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "TRACE", "CONNECT", "PRI", "get", "Get", "GETX"]
TARGETS = [
    *PATHS, "/allowed", "/allowed/x?y=../..&z=%2e%2e//", "/allowed/@scope%2fname", "/allowed/%C3%A9",
    "/allowed?", "/allowed??", "/allowed?x#y", "*", f"/allowed/{TOKEN}", f"/allowed?x={TOKEN}",
    f"/allowed?{SECRET}", f"/{SECRET}", f"/allowed/{SECRET[:8]}%{ord(SECRET[8]):02x}{SECRET[9:]}",
    "https://api.example.com/allowed", "http://other.example.com/allowed", "/allowed/" + "x" * 5000,
    "/allowed/".ljust(16 * 1024, "x"), "/allowed/".ljust(16 * 1024 + 1, "x"),
    "/allowed?".ljust(16 * 1024, "x"), "/allowed?".ljust(16 * 1024 + 1, "x"),
]  # fmt: skip
TABLES: dict[str, dict[str, bytes]] = {
    "framing": {name: START + text + b"\r\n" for name, text in HEADS.items()},
    "lines": LINES,
    "targets": {repr(target): get(target, HOST) for target in TARGETS},
    "hosts": {
        name: get("/allowed", text)
        for name, text in (
            ADDRESSES | HOSTS | STRANGERS | {name: HOST + port for name, port in PORTS.items()}
        ).items()
    },
    "fields": {name: get("/allowed", HOST, *fields) for name, fields in FIELDS.items()},
    "methods": {
        f"{method} {path}": request(method, path, HOST) for method in METHODS for path in ("/allowed", "/no")
    },
}


class Ways:
    """agent-b's requests find no kept connection, agent-a's find one. Both have the same routes."""

    def __init__(self, lab: Harness) -> None:
        self._lab = lab
        self._clients: dict[str, Client] = {}
        for slug in ("agent-a", "agent-b"):
            lab.publish(slug, ROUTES)
        self._earlier = {slug: len(self._records(slug)) for slug in ("agent-a", "agent-b")}

    def differences(self, raw: bytes) -> list[Any]:
        """What became of it on the ways, if it is not the same on all."""
        cold = self._cold(raw)
        others = [self.warm(raw), self._known(raw)]
        return [cold, *others] if any(other not in (cold, None) for other in others) else []

    def _cold(self, raw: bytes) -> Any:
        self._lab.origins.speak(HOST, b"!")  # so that nothing is kept
        return self._outcome("cold", raw)

    def warm(self, raw: bytes) -> Any:
        assert self._client("warm").ask(HARMLESS).status == 200
        return self._outcome("warm", raw)

    def _known(self, raw: bytes) -> Any:
        """None for fields that cannot be sent with another line, or not without ending the connection."""
        _, _, fields = raw.partition(b"\r\n")
        lowered = fields.lower()
        if (
            lowered.find(b"\r\n\r\n") != len(fields) - 4
            or b"content-length" in lowered
            or b"transfer" in lowered
        ):
            return None
        client = self._client("known")
        assert client.ask(HARMLESS).status == 200
        for _ in range(2):
            before = client.ask(HARMLESS.partition(b"\r\n")[0] + b"\r\n" + fields)
            while before.status < 200:
                before = client.answer()
            if _ends(before):
                self._clients.pop("known").close()
                return None
        return self._outcome("known", raw)

    def _outcome(self, way: str, raw: bytes) -> Any:
        """The answers, up to that of a request which comes after it, and what the origin got for them."""
        client, seen = self._client(way), self._lab.origins.connections
        before = {id(connection): len(connection.raw) for connection in seen}
        answers = list(self._answers(client, raw))
        if _ends(answers[-1]):
            self._clients.pop(way).close()
        sent = b"".join(bytes(connection.raw[before.get(id(connection), 0) :]) for connection in seen)
        return [(answer.status, answer.headers, answer.body) for answer in answers], sent

    def _answers(self, client: Client, raw: bytes) -> Any:
        client.send(raw)
        asked, method = not client.hears(0.03), raw.partition(b" ")[0]
        if asked:  # it waits for more of this one
            client.send(AFTER)
        while True:
            yield (answer := client.answer(to=b"HEAD" if method == b"HEAD" else b"GET"))
            if _ends(answer) or b'"/allowed/after"' in answer.body:
                return
            if answer.status >= 200:
                method = b"GET"  # of the one after it, which is sent already where the answer took its time
            if answer.status >= 200 and not asked:
                asked = True
                client.send(AFTER)

    def _client(self, way: str) -> Client:
        if way not in self._clients:
            self._clients[way] = self._lab.secured(HOST, slug="agent-b" if way == "cold" else "agent-a")
        return self._clients[way]

    def _records(self, slug: str) -> list[dict[str, Any]]:
        return [record for record in self._lab.records() if record["bottle"] == slug]

    def noted(self, slug: str) -> set[str]:
        """All but when, how long, and what was only sent to prepare something."""
        return {
            str({key: value for key, value in record.items() if key not in UNCERTAIN})
            for record in self._records(slug)[self._earlier[slug] :]
            if record["path"] != "/allowed/before"
        }

    def check_records_of(self, other: Ways) -> None:
        """What this proxy has noted is what the other one has."""
        eventually(lambda: self.noted("agent-a") == other.noted("agent-a"), "the same records")

    def check_records(self) -> None:
        eventually(lambda: self.noted("agent-a") == self.noted("agent-b"), "the same records")


UNCERTAIN = {"bottle", "at", "table_version", "first_byte_ms", "duration_ms"}


def _ends(answer: Answer) -> bool:
    return answer.headers.get("connection") == "close"


@pytest.fixture
def ways(lab: Harness) -> Ways:
    return Ways(lab)


@pytest.mark.parametrize("table", TABLES)
def test_both_ways_make_the_same_of_it(ways: Ways, table: str) -> None:
    different = {name: found for name, raw in TABLES[table].items() if (found := ways.differences(raw))}
    assert different == {}
    ways.check_records()


lines = mutated(st.sampled_from([*STARTS[:2], b"HEAD /allowed/x HTTP/1.1", b"OPTIONS /allowed?x HTTP/1.1"]))


@settings(
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(heads | usual_heads | lines.map(lambda line: line + b"\r\nHost: api.example.com"))
@example(START + b"X-A: b\r\n")
def test_both_ways_make_the_same_of_any_head(ways: Ways, raw: bytes) -> None:
    assert ways.differences(raw if raw.endswith(b"\r\n\r\n") else raw + b"\r\n\r\n") == []
