"""A path is matched and forwarded as it is, or refused; prefixes have one form and end at segments."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from egress.errors import BadPath
from egress.paths import canonical_path, canonical_prefix, prefix_allows, reduce_prefixes

SEGMENT = st.from_regex(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,6}", fullmatch=True)
PREFIX = st.lists(SEGMENT, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
TRICKY = st.text(alphabet=st.sampled_from("/.%2e2fE5cC;\\ab\0\u00fc0AFf?#"), max_size=24).map("/".__add__)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/repos",
        "/repos/",
        "/a/b.c/..d/e..",
        "/compare/main...feature",
        "/@scope%2fname",
        "/@scope%2Fname",
        "/api/v4/projects/acme%2Fsite/repository",
        "/a%20b",
        "/100%25",
        "/caf%C3%A9",
        "/a:b@c!$&'()*+,=[0]|~_-",
        "/web/https%3A%2F%2Fexample.com",
        "/.well-known/x",
    ],
)
def test_an_unambiguous_path_is_forwarded_as_it_is(path: str) -> None:
    assert canonical_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "*",
        "repos",
        "https://a.com/",
        "/..",
        "/.",
        "/a/../b",
        "/a/./b",
        "/a/..",
        "/a/...",
        "/a/%2e%2e/b",
        "/a/%2E./b",
        "/a/.%2e",
        "/a/..%2fb",
        "/a%2f..%2fb",
        "/a%2F%2e%2e%2Fb",
        "/a/%252e%252e/b",
        "/a/..%252fb",
        "/a/%25252e%25252e/b",
        "/a/%" + "25" * 6 + "2e",
        "/a/%2525252525252541",
        "/a/..;/b",
        "/a/..;x=1/b",
        "/a/..%3b/b",
        "/a/..%20/b",
        "/a;b",
        "//a",
        "/a//b",
        "/a//",
        "/a\\b",
        "/a%5cb",
        "/a%5C..%5Cb",
        "/a%255c..%255cb",
        "/a%00",
        "/a%2500",
        "/a%0d%0aX",
        "/a%7f",
        "/a\r\nX",
        "/a\0",
        "/a b",
        "/a?b",
        "/a#b",
        "/%41",
        "/%7Euser",
        "/a%",
        "/a%2",
        "/a%zz",
        "/a%c0%ae%c0%ae/b",
        "/a%c0%af",
        "/a%e0%80%af",
        "/a%ed%a0%80",
        "/a%ff",
        "/%EF%BC%8E%EF%BC%8E/b",
        "/a%EF%BC%8F..%EF%BC%8Fb",
        "/%E2%80%A5/b",
        "/caf\u00e9",
        "/a\ud800",
        '/a"b',
        "/a<b>",
        "/a{b}",
    ],
)
def test_an_ambiguous_path_is_refused_never_repaired(path: str) -> None:
    with pytest.raises(BadPath) as refusal:
        canonical_path(path)
    assert str(refusal.value).isprintable()


@given(TRICKY | st.text(max_size=30) | PREFIX)
@example("/a/%2e")
def test_canonical_path_returns_the_raw_path_or_raises(raw: str) -> None:
    try:
        assert canonical_path(raw) == raw
    except BadPath:
        return
    decoded = raw
    for _ in range(4):
        for part in decoded.replace("\\", "/").split("/"):
            assert part not in {".", ".."}
        decoded = decoded.replace("%2e", ".").replace("%2E", ".").replace("%2f", "/").replace("%2F", "/")
        decoded = decoded.replace("%5c", "/").replace("%5C", "/").replace("%25", "%")


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("/", "/"),
        ("/repos", "/repos"),
        ("/repos/", "/repos"),
        ("/repos/acme/", "/repos/acme"),
        ("/%7Euser", "/~user"),
        ("/%41bc", "/Abc"),
        ("/@scope%2fname", "/@scope%2Fname"),
        ("/café", "/caf%C3%A9"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/a%20b", "/a%20b"),
        ("/\u202e", "/%E2%80%AE"),
    ],
)
def test_a_prefix_has_one_form(text: str, prefix: str) -> None:
    assert canonical_prefix(text) == prefix


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("repos", "must start with '/': got 'repos'"),
        ("", "must start with '/'"),
        ("*", "must start with '/'"),
        ("/a/..", "dot segment"),
        ("/a/%2e%2e", "dot segment"),
        ("/a%2f%2e%2e%2fb", "dot segment"),
        ("/%25%32%65", "dot segment"),
        ("//", "empty segment"),
        ("/a//b", "empty segment"),
        ("/a\\b", "backslash"),
        ("/a;b", "';'"),
        ("/a?b=c", "query"),
        ("/a#b", "fragment"),
        ("/a b", "percent-encoded"),
        ("/a*\n", "percent-encoded"),
        ("/a%00", "control"),
        ("/a%", "'%'"),
        ("/\ud800", "Unicode"),
        ("/" + "a" * 2000, "longer"),
        (None, "must be text"),
        (7, "must be text"),
    ],
)
def test_it_refuses_a_prefix(text: object, because: str) -> None:
    with pytest.raises(BadPath, match=r"^path_allowlist\[0\] ") as refusal:
        canonical_prefix(text, field="path_allowlist[0]")  # type: ignore[arg-type]
    assert because in str(refusal.value)


@given(TRICKY | st.text(max_size=20).map("/".__add__) | PREFIX)
def test_canonical_prefix_is_idempotent_and_itself_a_path(text: str) -> None:
    try:
        prefix = canonical_prefix(text)
    except BadPath:
        return
    assert canonical_prefix(prefix) == prefix
    assert canonical_path(prefix) == prefix
    assert prefix_allows(prefix, prefix)


@pytest.mark.parametrize(
    ("prefix", "path", "allows"),
    [
        ("/repos", "/repos", True),
        ("/repos", "/repos/", True),
        ("/repos", "/repos/x", True),
        ("/repos", "/reposevil", False),
        ("/repos", "/repos%2Fx", False),
        ("/repos", "/repo", False),
        ("/repos", "/Repos", False),
        ("/repos", "/", False),
        ("/", "/anything", True),
        ("/@s%2Fn", "/@s%2fn", True),
        ("/@s%2Fn", "/@s%2fnx", False),
    ],
)
def test_prefixes_end_at_segment_boundaries(prefix: str, path: str, allows: bool) -> None:
    assert prefix_allows(prefix, path) is allows


@given(PREFIX, st.text(alphabet="abc._-~/", max_size=6))
def test_a_prefix_allows_itself_and_what_is_below_it_only(prefix: str, rest: str) -> None:
    assert prefix_allows(prefix, prefix + rest) is (rest == "" or rest.startswith("/"))


@given(st.lists(PREFIX, min_size=1, max_size=6), PREFIX)
def test_reducing_prefixes_changes_nothing_about_what_they_allow(prefixes: list[str], path: str) -> None:
    reduced = reduce_prefixes(prefixes)
    for candidate in (path, *prefixes, *(prefix + "/x" for prefix in prefixes)):
        assert any(prefix_allows(p, candidate) for p in reduced) is any(
            prefix_allows(p, candidate) for p in prefixes
        )
    assert reduce_prefixes(reduced) == reduced


def test_a_root_prefix_means_all_paths() -> None:
    assert reduce_prefixes(["/a", "/", "/b"]) == ()
    assert reduce_prefixes(["/b/c", "/b", "/a", "/a"]) == ("/a", "/b")
