"""A path is matched and forwarded as it is, or refused; prefixes have one form and end at segments."""

from __future__ import annotations

import re
import sys
import unicodedata
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from egress.policy.errors import BadPath
from egress.policy.paths import (
    FOLDED,
    canonical_path,
    canonical_prefix,
    has_dot_segment,
    prefix_allows,
    reduce_prefixes,
    upper_hex,
)

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


# --- what a server reads that folds characters

MATTERING = frozenset("./\\; ")
FOLDING = [
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if MATTERING & set(unicodedata.normalize("NFKC", character)) and character not in MATTERING
]
MARKS = [chr(point) for point in range(0x300, 0x370) if unicodedata.combining(chr(point))]


def is_folded_to_a_dot_segment(text: str) -> bool:
    """As it was asked before there was a table: right, but slow where many marks follow each other."""
    heads = [segment.partition(";")[0] for segment in re.split(r"[/\\]", unicodedata.normalize("NFKC", text))]
    return any("." in head and not head.strip(". ") for head in heads)


def test_the_table_has_every_character_that_unicode_folds_to_dots_separators_and_spaces_alone() -> None:
    folded = {character: unicodedata.normalize("NFKC", character) for character in FOLDING}
    assert {ord(c): text for c, text in folded.items() if MATTERING.issuperset(text)} == FOLDED


def test_no_other_character_can_begin_or_end_a_dot_segment() -> None:
    """What `1.` and `a/c` fold to has something else on each side of a separator, as the character itself."""
    for character in FOLDING:
        for before in ("", ".", "/", "/.", ";", "..;", " ", "x"):
            for after in ("", ".", "/", "./", ";", " ", "x", "\u0338"):
                text = before + character + after
                assert has_dot_segment(text) is is_folded_to_a_dot_segment(text), ascii(text)


def test_no_character_that_matters_is_composed_with_one_that_follows() -> None:
    for character in map(chr, range(sys.maxunicode + 1)):
        assert unicodedata.normalize("NFKC", character), "no character is folded to nothing"
        apart = unicodedata.normalize("NFD", character)
        assert len(apart) == 1 or not MATTERING & set(apart)


@given(
    st.text(
        st.sampled_from("./\\; x%") | st.sampled_from(FOLDING) | st.sampled_from(MARKS) | st.characters(),
        max_size=12,
    )
)
@example("a/\u2025")
@example("\u2025\u0301/")
@example(".\u3000\uff1bx")
@example("\u2100..")
def test_a_dot_segment_is_found_wherever_folding_would_show_one(text: str) -> None:
    assert has_dot_segment(text) is is_folded_to_a_dot_segment(text)


def test_every_control_character_is_refused_also_when_it_is_encoded() -> None:
    control = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) == "Cc"]
    assert len(control) == 65
    for character in control:
        with pytest.raises(BadPath, match="control"):
            canonical_path(f"/a{quote(character)}")


def test_no_text_is_normalised_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    by_class = {unicodedata.combining(mark): mark for mark in MARKS}
    path = "/q" + quote("".join(by_class[order] * 300 for order in sorted(by_class, reverse=True)))
    with monkeypatch.context() as patch:
        patch.setattr(unicodedata, "normalize", None)
        assert canonical_path(path) == path


# --- prefixes


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


@given(
    st.sampled_from(["/@s%2Fn", "/%2F", "/a%C3%A9", "/a"]),
    st.lists(st.sampled_from(["/", "a", "@s", "n", "%2f", "%2F", "%c3", "%a9"]), max_size=6).map("".join),
)
@example("/@s%2Fn", "@s%2fn")
def test_a_prefix_is_compared_as_if_all_of_the_path_had_upper_case_digits(prefix: str, rest: str) -> None:
    path = f"/{rest}"
    upper = upper_hex(path)
    assert prefix_allows(prefix, path) is (upper == prefix or upper.startswith(f"{prefix}/"))


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
