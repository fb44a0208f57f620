"""Attempts to aim at one host and be let through as another."""

from __future__ import annotations

import socket
import ssl

import pytest

from tests.support.proxy_harness import Client, Harness, connect, get, request

pytestmark = pytest.mark.process

ADDRESSES = {
    "plain": "127.0.0.3",
    "one number": "2130706435",
    "hexadecimal": "0x7f000003",
    "octal": "0177.0.0.3",
    "short": "127.3",
    "mixed bases": "0x7f.0.0.03",
    "zero": "0",
    "metadata": "169.254.169.254",
    "trailing dot": "127.0.0.3.",
    "IPv6 loopback": "[::1]",
    "IPv6 mapped": "[::ffff:127.0.0.3]",
    "IPv6 with zone": "[fe80::1%25lo]",
    "IPv6 without brackets": "::1",
}

HOSTS = {
    "user information": "api.example.com@other.example.com",
    "user and password": "user:pass@api.example.com",
    "backslash": "api.example.com\\@other.example.com",
    "backslash path": "other.example.com\\api.example.com",
    "space": "api.example.com other.example.com",
    "comma": "api.example.com,other.example.com",
    "tab": "api.example.com\tother.example.com",
    "NUL": "api.example.com\0.other.example.com",
    "percent": "api%2eexample.com",
    "underscore": "api_.example.com",
    "leading dot": ".api.example.com",
    "two dots": "api..example.com",
    "two trailing dots": "api.example.com..",
    "leading hyphen": "-api.example.com",
    "wildcard": "*.example.com",
    "long label": "a" * 64 + ".example.com",
    "bad punycode": "xn--a.example.com",
    "raw UTF-8 look-alike": "\u0430pi.example.com".encode().decode("latin-1"),
    "wide dots": "api\u3002example\u3002com".encode().decode("latin-1"),
    "semicolon": "api.example.com;other.example.com",
    "empty": "",
}

STRANGERS = {
    "suffix added": "api.example.com.evil.org",
    "prefix added": "evilapi.example.com",
    "parent": "example.com",
    "child": "x.api.example.com",
    "punycode look-alike": "xn--pi-7kc.example.com",
    "other bottle's host": "other.example.com",
}

PORTS = {
    "other port": ":8080",
    "TLS port over http": ":443",
    "zero": ":0",
    "too large": ":65536",
    "huge": ":4294967376",
    "letters": ":80x",
    "sign": ":+80",
    "hexadecimal": ":0x50",
    "empty": ":",
    "two": ":80:80",
    "negative": ":-80",
}


def cases(table: dict[str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("text", list(table.values()), ids=list(table))


def refused(lab: Harness, message: bytes, *, client: Client | None = None) -> None:
    answer = (client or lab.client()).ask(message)
    assert answer.status in (400, 403), answer.status
    assert lab.requests == []


@cases(ADDRESSES | HOSTS | STRANGERS)
def test_a_plain_request_to_it_goes_nowhere(lab: Harness, text: str) -> None:
    refused(lab, get(f"http://{text}/allowed", text))


@cases(ADDRESSES | HOSTS)
def test_a_connect_to_it_goes_nowhere(lab: Harness, text: str) -> None:
    refused(lab, request("CONNECT", f"{text}:443", f"{text}:443"))


@cases(ADDRESSES | HOSTS | STRANGERS)
def test_it_is_no_host_header_for_an_allowed_target(lab: Harness, text: str) -> None:
    refused(lab, get("http://api.example.com/allowed", text))


@cases(ADDRESSES | HOSTS | STRANGERS)
def test_it_is_no_host_header_inside_tls(lab: Harness, text: str) -> None:
    refused(lab, get("/allowed", text), client=lab.secured("api.example.com"))


@cases(PORTS)
def test_a_port_is_not_a_way_around(lab: Harness, text: str) -> None:
    refused(lab, get(f"http://api.example.com{text}/allowed", f"api.example.com{text}"))


@pytest.mark.parametrize("port", [0, 22, 80, 444, 8443, 65536, 4294967739])
def test_connect_is_for_port_443(lab: Harness, port: int) -> None:
    refused(lab, connect("bare.example.com", port))


@pytest.mark.parametrize(
    "target",
    [
        "https://api.example.com/allowed",
        "ftp://api.example.com/allowed",
        "http:/api.example.com/allowed",
        "http:///allowed",
        "http:api.example.com/allowed",
        "//api.example.com/allowed",
        "/allowed",
        "*",
        "api.example.com:80",
        "http://api.example.com#@other.example.com/allowed",
        "http://api.example.com?@other.example.com/allowed",
        "http://api.example.com/allowed#fragment",
        "httpx://api.example.com/allowed",
        "",
    ],
)
def test_other_forms_of_target_are_refused(lab: Harness, target: str) -> None:
    refused(lab, get(target, "api.example.com"))


@pytest.mark.parametrize(
    "head",
    [
        b"GET http://api.example.com/allowed HTTP/1.1\r\n\r\n",
        get("http://api.example.com/allowed", "api.example.com", "Host: api.example.com"),
        get("http://api.example.com/allowed", "api.example.com", "Host: other.example.com"),
        b"GET http://other.example.com/allowed HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        b"GET http://api.example.com/allowed HTTP/1.1\r\nHost : api.example.com\r\n\r\n",
        b"GET http://api.example.com/allowed HTTP/1.1\r\nConnection: host\r\nHost: api.example.com\r\n\r\n",
        b"CONNECT bare.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n",
        b"CONNECT bare.example.com:443 HTTP/1.1\r\n\r\n",
        b"CONNECT bare.example.com HTTP/1.1\r\nHost: bare.example.com\r\n\r\n",
        b"CONNECT bare.example.com:443/x HTTP/1.1\r\nHost: bare.example.com\r\n\r\n",
        b"CONNECT http://bare.example.com:443 HTTP/1.1\r\nHost: bare.example.com\r\n\r\n",
        b"CONNECT /allowed HTTP/1.1\r\nHost: bare.example.com\r\n\r\n",
        b"CONNECT bare.example.com:443 HTTP/1.1\r\nHost: bare.example.com\r\nContent-Length: 1\r\n\r\nx",
    ],
)
def test_a_head_whose_host_is_not_certain_is_refused(lab: Harness, head: bytes) -> None:
    refused(lab, head)


@pytest.mark.parametrize(
    "head",
    [
        connect("bare.example.com"),
        b"GET http://api.example.com/allowed HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        b"GET https://api.example.com/allowed HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["nested CONNECT", "absolute http", "absolute https", "HTTP/2 preface"],
)
def test_a_proxy_request_inside_tls_is_refused(lab: Harness, head: bytes) -> None:
    refused(lab, head, client=lab.secured("api.example.com"))


@pytest.mark.parametrize("host", ["API.EXAMPLE.COM", "Api.Example.Com", "api.example.com."])
def test_another_spelling_of_an_allowed_host_reaches_the_canonical_one(lab: Harness, host: str) -> None:
    assert lab.client().ask(get(f"http://{host}/allowed", host)).status == 200
    [seen] = lab.requests
    assert (seen.origin, seen.values("host")) == ("api.example.com", ["api.example.com"])


@pytest.mark.parametrize("host", ["supervise", "_egress.local", "SUPERVISE"])
def test_our_own_names_are_not_for_connect(lab: Harness, host: str) -> None:
    refused(lab, connect(host))


# --- what TLS says


def hello(name: str | None, **options: object) -> bytes:
    """The ClientHello of a real TLS library."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    machine = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        machine.do_handshake()
    return outgoing.read()


def records(message: bytes, size: int) -> bytes:
    """The same handshake message in TLS records of `size` bytes."""
    body = message[5:]
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(message[:3] + len(piece).to_bytes(2, "big") + piece for piece in pieces)


def with_extension(message: bytes, extension: bytes) -> bytes:
    """The ClientHello with one more extension at its end, every length put right."""
    hello = bytearray(message[9:])
    position = 34
    position += 1 + hello[position]
    position += 2 + int.from_bytes(hello[position : position + 2], "big")
    position += 1 + hello[position]
    size = int.from_bytes(hello[position : position + 2], "big") + len(extension)
    hello[position : position + 2] = size.to_bytes(2, "big")
    hello += extension
    handshake = b"\x01" + len(hello).to_bytes(3, "big") + hello
    return b"\x16\x03\x01" + len(handshake).to_bytes(2, "big") + bytes(handshake)


SERVER_NAME = b"\x00\x00\x00\x16\x00\x14\x00\x00\x11other.example.com"
TWO_NAMES = b"\x00\x00\x00\x29\x00\x27\x00\x00\x10bare.example.com\x00\x00\x11other.example.com"
TUNNELS = {
    "another name": hello("other.example.com"),
    "no name": hello(None),
    "longer name": hello("bare.example.comx"),
    "parent": hello("example.com"),
    "another name in small records": records(hello("other.example.com"), 7),
    "two server name extensions": with_extension(hello("bare.example.com"), SERVER_NAME),
    "two names in one extension": with_extension(hello(None), TWO_NAMES),
    "encrypted client hello": with_extension(hello("bare.example.com"), b"\xfe\x0d\x00\x04\x00\x00\x00\x00"),
    "an extension of our own, twice": with_extension(hello("bare.example.com"), 2 * b"\x5a\x5b\x00\x00"),
    "half of an extension's start": with_extension(hello("bare.example.com"), b"\x5a\x5b\x00"),
    "half of an extension": with_extension(hello("bare.example.com"), b"\x5a\x5b\x00\x09half"),
    "plain HTTP": b"GET /allowed HTTP/1.1\r\nHost: bare.example.com\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "an alert first": b"\x15\x03\x03\x00\x02\x01\x00" + hello("bare.example.com"),
    "SSL 2": b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10",
    "an empty record first": b"\x16\x03\x01\x00\x00" + hello("bare.example.com"),
    "half a hello": hello("bare.example.com")[:100],
    "a hello that claims to be huge": b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + b"x" * 16380,
    "a cut hello": b"\x16\x03\x01\x00\x06\x01\x00\x00\x02\x03\x03",
}


@pytest.mark.parametrize("first", list(TUNNELS.values()), ids=list(TUNNELS))
def test_a_tunnel_carries_nothing_before_the_right_server_name(lab: Harness, first: bytes) -> None:
    client = lab.client()
    assert client.ask(connect("bare.example.com")).status == 200
    client.send(first)
    assert client.everything() in (b"", bytes.fromhex("15030300020270"))
    assert all(connection.raw == b"" for connection in lab.origins.connections)


@pytest.mark.parametrize("first", list(TUNNELS.values()), ids=list(TUNNELS))
@pytest.mark.parametrize("host", ["api.example.com", "denied.example.org"])
def test_an_inspected_connection_needs_the_right_server_name(lab: Harness, host: str, first: bytes) -> None:
    client = lab.client()
    assert client.ask(connect(host)).status == 200
    client.send(first)
    client.everything()
    assert lab.requests == []


@pytest.mark.parametrize("size", [1, 5, 100])
def test_a_hello_in_pieces_is_put_together(lab: Harness, size: int) -> None:
    client = lab.client()
    assert client.ask(connect("bare.example.com")).status == 200
    for byte in records(hello("BARE.example.com"), size):
        client.send(bytes([byte]))
    assert client.take(1) == b"\x16"  # the origin's ServerHello


def test_data_sent_before_the_answer_to_connect_is_refused(lab: Harness) -> None:
    for host in ("bare.example.com", "api.example.com"):
        refused(lab, connect(host) + hello(host))
        refused(lab, connect(host) + get("/allowed", host))


def test_http_2_is_not_offered_where_requests_are_inspected(lab: Harness) -> None:
    client = lab.client()
    client.ask(connect("api.example.com"))
    context = ssl.create_default_context(cafile=lab.home / "bottles" / "agent-a" / "ca.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    secured = context.wrap_socket(client.socket, server_hostname="api.example.com")
    assert secured.selected_alpn_protocol() == "http/1.1"
    secured.close()


def test_a_leaf_is_for_one_host_only(lab: Harness) -> None:
    client = lab.client()
    client.ask(connect("api.example.com"))
    context = ssl.create_default_context(cafile=lab.home / "bottles" / "agent-a" / "ca.pem")
    with context.wrap_socket(client.socket, server_hostname="api.example.com") as secured:
        certificate = secured.getpeercert()
    assert certificate is not None
    assert certificate["subjectAltName"] == (("DNS", "api.example.com"),)


def test_one_bottles_ca_means_nothing_to_another(lab: Harness) -> None:
    lab.secured("denied.example.org", slug="agent-b")
    client = lab.client("agent-a")
    client.ask(connect("api.example.com"))
    context = ssl.create_default_context(cafile=lab.home / "bottles" / "agent-b" / "ca.pem")
    with pytest.raises(ssl.SSLCertVerificationError):
        context.wrap_socket(client.socket, server_hostname="api.example.com")


def test_closing_halfway_through_the_handshake_leaves_nothing_behind(lab: Harness) -> None:
    for host in ("bare.example.com", "api.example.com"):
        client = lab.client()
        client.ask(connect(host))
        client.send(hello(host)[:50])
        client.socket.shutdown(socket.SHUT_RDWR)
    assert lab.requests == []
