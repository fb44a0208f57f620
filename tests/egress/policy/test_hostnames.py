"""One canonical form per host, what an agent may ask for, and how names are shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from egress.policy.errors import BadHost
from egress.policy.hostnames import (
    canonical_host,
    canonical_pattern,
    check_askable,
    check_operator_host,
    is_forbidden_address,
    is_punycode,
    mixed_script,
    pattern_matches,
)

LABEL = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
HOST = st.lists(LABEL, min_size=1, max_size=4).map(".".join)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("API.GitHub.com", "api.github.com"),
        ("api.github.com.", "api.github.com"),
        ("localhost", "localhost"),
        ("a-b.c1.example", "a-b.c1.example"),
        ("1password.com", "1password.com"),
        ("123.example", "123.example"),
        ("r3---sn-x.googlevideo.com", "r3---sn-x.googlevideo.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("straße.de", "xn--strae-oqa.de"),
        ("例え。テスト", "xn--r8jz45g.xn--zckzah"),
        ("ｇｉｔｈｕｂ．ｃｏｍ", "github.com"),
        ("a" * 63 + ".com", "a" * 63 + ".com"),
    ],
)
def test_it_gives_one_canonical_form(text: str, canonical: str) -> None:
    assert canonical_host(text) == canonical


IP_FORMS = [
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "2130706433",
    "0x7f.1",
    "0X7F000001",
    "0x",
    "0177.0.0.1",
    "0300.0250.1",
    "1.2.3.4.5",
    "example.0x1",
    "example.1",
    "[::1]",
    "::1",
    "::ffff:127.0.0.1",
    "fe80::1%eth0",
    "[fe80::1%25eth0]",
    "１２７.0.0.1",
    "127。0。0。1",
    "①②⑦.⓪.⓪.①",
    "0ｘ7f.1",
]


@pytest.mark.parametrize("text", IP_FORMS)
def test_it_refuses_an_ip_address_in_any_form(text: str) -> None:
    with pytest.raises(BadHost):
        canonical_host(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        ".com",
        "a..com",
        "a.com..",
        " a.com",
        "a.com ",
        "a\tb.com",
        "a.com\n",
        "a.com\0",
        "a\x7f.com",
        "https://a.com",
        "//a.com",
        "a.com/x",
        "a.com:443",
        "user@a.com",
        "a.com?x",
        "a.com#x",
        "a%2ecom",
        "a\\b.com",
        "a_b.com",
        "_egress.local",
        "*.a.com",
        "a.*.com",
        "＊.a.com",
        "a／b.com",
        "a＠b.com",
        "a％2e.com",
        "a：80.com",
        "-a.com",
        "a-.com",
        "a" * 64 + ".com",
        ".".join(["a" * 49] * 6),
        "ü" * 60 + ".com",
        "a\u200b.com",
        "a\u00ad.com",
        "a\u202e.com",
        "xn--a",
        "xn--.com",
        "xn--bcher-kva-.com",
        "xn--abc-.com",
        "xn--BCHER-KVA1234567890.com",
        "a⒈com",
        "a\ud800.com",
        "a" * 100_000,
    ],
)
def test_it_refuses_what_is_not_a_hostname(text: str) -> None:
    with pytest.raises(BadHost) as refusal:
        canonical_host(text)
    assert str(refusal.value).startswith("host ")
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("value", [None, 5, b"a.com", ["a.com"]])
def test_it_refuses_other_types(value: object) -> None:
    with pytest.raises(BadHost):
        canonical_host(value)  # type: ignore[arg-type]


@given(st.text(max_size=40) | HOST)
@example("Ａ.com")
@example("xn--a.com")
def test_canonical_host_is_idempotent_and_plain(text: str) -> None:
    try:
        host = canonical_host(text)
    except BadHost:
        return
    assert canonical_host(host) == host
    assert host.isascii()
    assert host == host.lower()
    assert not set(host) & set("/\\@:%?#[]*_ ")


@given(st.ip_addresses())
def test_no_ip_address_is_a_hostname(address: object) -> None:
    with pytest.raises(BadHost):
        canonical_host(str(address))


@pytest.mark.parametrize(
    ("text", "pattern"),
    [("*.Example.COM.", "*.example.com"), ("a.com", "a.com"), ("*.bücher.de", "*.xn--bcher-kva.de")],
)
def test_a_pattern_may_start_with_a_wildcard(text: str, pattern: str) -> None:
    assert canonical_pattern(text) == pattern


@pytest.mark.parametrize("text", ["*", "*.", "*.*.com", "**.a.com", "a*.com", "*a.com", "*.127.1", "*.a..b"])
def test_it_refuses_other_patterns(text: str) -> None:
    with pytest.raises(BadHost):
        canonical_pattern(text)


@pytest.mark.parametrize(
    "text",
    [
        "api.github.com",
        "*.github.com",
        "foo.github.io",
        "*.foo.github.io",
        "a.test",
        "x.example",
        "foo.co.uk",
    ],
)
def test_an_agent_may_ask_for(text: str) -> None:
    assert check_askable(text) == text


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("intranet", "has no domain"),
        ("localhost", "has no domain"),
        ("a.localhost", "this machine"),
        ("printer.local", "local network"),
        ("Metadata.Google.Internal.", "cloud metadata"),
        ("instance-data", "has no domain"),
        ("instance-data.ec2.internal", "cloud metadata"),
        ("metadata.tencentyun.com", "metadata service"),
        ("*.tencentyun.com", "metadata service"),
        ("nas.lan", "private networks"),
        ("nas.home.arpa", "private networks"),
        ("home.arpa", "private networks"),
        ("*.corp", "public suffix"),
        ("x.invalid", "never resolves"),
        ("supervise", "belongs to bot-bottle"),
        ("SUPERVISE.", "belongs to bot-bottle"),
        ("_egress.local", "belongs to bot-bottle"),
        ("*.com", "public suffix"),
        ("*.co.uk", "public suffix"),
        ("*.github.io", "public suffix"),
        ("*.test", "public suffix"),
        ("co.uk", "public suffix"),
        ("github.io", "public suffix"),
        ("*.xn--p1ai", "public suffix"),
        ("169.254.169.254", "IP address"),
    ],
)
def test_an_agent_may_not_ask_for(text: str, because: str) -> None:
    with pytest.raises(BadHost, match=because):
        check_askable(text)


@pytest.mark.parametrize("text", ["nas", "gitlab.internal", "s3.amazonaws.com"])
def test_an_operator_may_open_more_names(text: str) -> None:
    assert check_operator_host(text) == text


@pytest.mark.parametrize(
    "text", ["supervise", "_egress.local", "*.supervise", "*.com", "*.github.io", "10.0.0.1"]
)
def test_but_not_these(text: str) -> None:
    with pytest.raises(BadHost):
        check_operator_host(text)


@pytest.mark.parametrize(
    ("pattern", "host", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.b", "x.a.b", False),
        ("*.a.b", "x.a.b", True),
        ("*.a.b", "y.x.a.b", True),
        ("*.a.b", "a.b", False),
        ("*.a.b", "xa.b", False),
        ("*.a.b", "x.a.b.c", False),
    ],
)
def test_wildcards_match_below_their_name(pattern: str, host: str, matches: bool) -> None:
    assert pattern_matches(pattern, host) is matches


@given(HOST, HOST)
def test_a_wildcard_matches_exactly_the_names_below(name: str, below: str) -> None:
    assert pattern_matches(f"*.{name}", f"{below}.{name}")
    assert not pattern_matches(f"*.{name}", name)
    assert not pattern_matches(f"*.{name}", f"{below}x{name}")


@pytest.mark.parametrize(
    ("text", "suspicious"),
    [
        ("api.github.com", False),
        ("bücher.example", False),
        ("例え.jp", False),
        ("пример.рф", False),
        ("gіthub.com", True),  # a Cyrillic і among Latin letters
        ("аррӏе.com", True),  # Cyrillic alone, and looks like Latin
        ("*.bücher.example", False),
    ],
)
def test_names_that_can_mislead_are_known(text: str, suspicious: bool) -> None:
    host = canonical_pattern(text)
    assert mixed_script(host) is suspicious
    assert is_punycode(host) is (not text.isascii())


def test_broken_punycode_misleads_nobody() -> None:
    assert not mixed_script("xn--a.com")


@pytest.mark.parametrize(
    ("address", "because"),
    [
        ("10.1.2.3", "private"),
        ("172.31.0.1", "private"),
        ("192.168.1.1", "private"),
        ("127.0.0.53", "loopback"),
        ("169.254.1.1", "link-local"),
        ("169.254.169.254", "metadata"),
        ("168.63.129.16", "metadata"),
        ("100.100.100.200", "metadata"),
        ("100.64.0.1", "carrier"),
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("224.0.0.1", "multicast"),
        ("255.255.255.255", "reserved"),
        ("240.0.0.1", "reserved"),
        ("198.18.0.1", "benchmarking"),
        ("203.0.113.9", "documentation"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("::7f00:1", "IPv4-compatible"),
        ("::ffff:10.0.0.1", "mapped"),
        ("::ffff:8.8.8.8", "mapped"),
        ("64:ff9b::808:808", "a NAT64 address"),
        ("64:ff9b::7f00:1", "NAT64 address of a loopback"),
        ("64:ff9b::169.254.169.254", "NAT64 address of a cloud metadata"),
        ("64:ff9b:1::808:808", "local NAT64"),
        ("2002:7f00:1::", "6to4"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "Teredo"),
        ("fd00:ec2::254", "metadata"),
        ("fd12::1", "private"),
        ("fec0::1", "private"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "zone"),
        ("ff02::1", "multicast"),
        ("2001:db8::1", "documentation"),
        ("4000::1", "reserved"),
        ("not an address", "not an IP"),
        ("2130706433", "not an IP"),
    ],
)
def test_it_forbids_addresses_that_are_not_public(address: str, because: str) -> None:
    assert because in (is_forbidden_address(address) or "")


@pytest.mark.parametrize("address", ["8.8.8.8", "140.82.121.4", "2606:4700::1111"])
def test_public_addresses_are_fine(address: str) -> None:
    assert is_forbidden_address(address) is None


@pytest.mark.parametrize(
    ("address", "because"),
    [
        ("64:ff9b::808:808", None),
        ("64:ff9b::7f00:1", "a NAT64 address of a loopback address"),
        ("64:ff9b::169.254.169.254", "a NAT64 address of a cloud metadata address"),
        ("64:ff9b:1::808:808", "a local NAT64 address"),
        ("::ffff:8.8.8.8", "an IPv4-mapped address"),
    ],
)
def test_where_nat64_is_the_way_out_the_address_inside_counts(address: str, because: str | None) -> None:
    assert is_forbidden_address(address, nat64=True) == because


@given(st.ip_addresses(v=4))
def test_nothing_that_python_calls_private_passes(address: object) -> None:
    if getattr(address, "is_private", False) or getattr(address, "is_multicast", False):
        assert is_forbidden_address(str(address))


def test_the_matcher_loads_neither_the_suffix_list_nor_idna_nor_django() -> None:
    script = (
        "import sys, egress.policy.decide as p, egress.policy.table as t;"
        "import egress.policy.merge, egress.policy.asks;"
        "from datetime import *;"
        "routes = t.RouteTable().with_route(t.Route('api.github.com'));"
        "v = p.decide(p.Request('https', 'api.github.com', 443, 'GET', '/'), t.Snapshot('b', 1, routes, ''),"
        " now=datetime.now(UTC)); assert v.allowed;"
        "print({'publicsuffixlist', 'idna', 'django', 'yaml'} & set(sys.modules) or 'none')"
    )
    root = Path(__file__).parents[3]
    ran = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "none"
