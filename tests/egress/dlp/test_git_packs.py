"""Git packs: objects and deltas are put together, and what holds a secret is named."""

from __future__ import annotations

import random
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.dlp import git_packs
from egress.dlp.decoding import FREE, Unreadable
from egress.dlp.git_objects import MOST_OBJECT, built
from egress.dlp.git_packs import Pack as Reader
from egress.dlp.scanner import BodyScan, Found, Scanner
from tests.support.git_packs import Pack, copy, delta, insert, named, tree_of
from tests.support.steps import finish

SECRET = b"correct-Horse/battery+staple"
NOISE = random.Random(1).randbytes(100_000)


def texts(pack: bytes, size: int = 0) -> list[bytes]:
    """The text of each object."""
    reader, found, size = Reader(), [b""], size or len(pack)
    for start in range(0, len(pack), size):
        for piece in reader.feed(pack[start : start + size]):
            found[-1] += piece.data
            if piece.ends:
                found.append(b"")
    return found[:-1]


def label(pack: Pack) -> str:
    """What is said to hold the secret."""
    with pytest.raises(Found) as found:
        finish(BodyScan(Scanner([SECRET.decode()])).steps(pack.bytes, last=True))
    return found.value.finding.file


INSTRUCTIONS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 4000), st.integers(1, 1000)).map(lambda both: copy(*both)),
        st.binary(min_size=1, max_size=300).map(insert),
    ),
    max_size=20,
)


@given(INSTRUCTIONS, st.integers(1, 5000))
def test_a_delta_is_put_together_in_any_pieces(changes: list[tuple[bytes, int]], size: int) -> None:
    base = NOISE[:5000]
    change = delta(base, *changes)
    made = built(base, change)
    assert len(made) == sum(length for _, length in changes)
    pack = Pack().commit(b"work").blob(base).change(change).blob(b"last").bytes
    assert texts(pack, max(size, len(pack) // 500)) == [b"work", base, made, b"last"]


def test_a_delta_builds_on_another_and_on_an_object_by_its_name() -> None:
    first = b"one two three"
    second = first + b" four"
    pack = Pack().blob(first).change(delta(first, copy(0, len(first)), insert(b" four")))
    pack = pack.change(delta(second, insert(b"zero "), copy(0, len(second))))
    pack = pack.change_of(named("blob", second), delta(second, copy(4, 3)))
    assert texts(pack.bytes)[1:] == [second, b"zero " + second, b"two"]


def test_of_a_delta_on_an_object_elsewhere_what_it_adds_is_shown() -> None:
    change = delta(NOISE, copy(0, 10), insert(b"a" * 200), insert(b"b"), copy(5, 5), insert(b"c"))
    assert texts(Pack().change_of(b"\0" * 20, change).bytes) == [b"\n\0\n" + b"a" * 200 + b"b\n\0\nc"]


@pytest.mark.parametrize("size", [MOST_OBJECT // 2, MOST_OBJECT + 1])
def test_a_long_delta_is_read_as_it_comes(size: int) -> None:
    added = random.Random(size).randbytes(size)
    for pack in (
        Pack().change_of(b"\0" * 20, delta(b"", insert(added))),
        Pack().blob(b"x").change(delta(b"x", insert(added))),
    ):
        assert texts(pack.bytes, 50_000)[-1] == added


def test_no_more_is_put_together_than_may_be_decoded() -> None:
    """A few bytes can make a megabyte, again and again: then what is added is all that is shown."""
    base = bytes(MOST_OBJECT)
    change = delta(base, copy(0, 0xF0000), insert(b"added"))
    pack = Pack().blob(base)
    for number in range(1, 20):  # of the first one
        pack = pack.change(change, number)
    shown = texts(pack.bytes)[1:]
    assert FREE - MOST_OBJECT < sum(map(len, shown)) < FREE + 70 * len(pack.bytes)
    assert all(text.endswith(b"added") for text in shown)
    assert len(shown[-1]) < 20
    assert finish(BodyScan(Scanner()).steps(pack.bytes, last=True)) == pack.bytes, "and it may leave"


@pytest.mark.parametrize(
    "change",
    [
        delta(b"another length", copy(0, 3)),
        delta(b"base") + b"\0",
        delta(b"base", insert(b"longer than it says"), (b"", -3)),
        delta(b"base", insert(b"shorter than it says"), (b"", 3)),
        delta(b"base", insert(b"whole"))[:-2],
        b"\xff" * 20,
        b"",
    ],
)
def test_a_delta_that_breaks_the_rules_cannot_be_read(change: bytes) -> None:
    with pytest.raises(Unreadable, match="git pack"):
        texts(Pack().blob(b"base").change(change).bytes)


HEAD = b"PACK\0\0\0\2\0\0\0\1"


@pytest.mark.parametrize(
    "pack",
    [
        HEAD + b"\x00" + zlib.compress(b""),  # no such kind
        HEAD + b"\x50" + zlib.compress(b""),
        HEAD + b"\x33not compressed at all",
        HEAD + b"\x33" + zlib.compress(b"more than it says"),
        HEAD + b"\xff" * 20,  # a size without an end
        HEAD + b"\x70" + b"n" * 60,
    ],
)
def test_a_pack_that_breaks_the_rules_cannot_be_read(pack: bytes) -> None:
    with pytest.raises(Unreadable, match="git pack"):
        texts(pack)


@given(st.binary(max_size=200), st.integers(1, 50))
def test_anything_after_a_head_is_read_or_refused(data: bytes, size: int) -> None:
    with suppress(Unreadable):
        texts(HEAD + data, size)


def test_names_of_sha_256_are_read_over() -> None:
    change = delta(b"base", insert(SECRET))
    assert texts(Pack().change_of(b"n" * 32, change).bytes) == [SECRET]


# --- who holds it

LEAK = b"password: " + SECRET


def test_a_file_is_named_by_the_trees_whatever_comes_first() -> None:
    inner = tree_of(("settings.env", named("blob", LEAK)))
    root = ("app/", named("tree", inner)), ("README", b"r" * 20)
    expected = "app/settings.env"
    assert label(Pack().tree(*root).tree(("settings.env", named("blob", LEAK))).blob(LEAK)) == expected
    assert (
        label(Pack().blob(LEAK).blob(b"x").tree(("settings.env", named("blob", LEAK))).tree(*root))
        == expected
    )


def test_a_file_that_a_delta_makes_is_named() -> None:
    base = b"password: "
    pack = Pack().blob(base).change(delta(base, copy(0, len(base)), insert(SECRET)))
    assert label(pack.tree(("a b.txt", named("blob", LEAK)))) == "a b.txt"


def test_what_no_tree_knows_is_named_by_what_a_person_finds_it_by() -> None:
    name = named("blob", LEAK).hex()
    assert label(Pack().blob(LEAK)).startswith(f"git object {name} (git log ")
    assert f"--find-object={name} " in label(Pack().blob(LEAK))
    assert label(Pack().commit(LEAK)) == f"the message of commit {named('commit', LEAK).hex()}"
    assert label(Pack().change_of(b"\x11" * 20, delta(b"", insert(LEAK)))).startswith(
        "a change of git object " + "11" * 20
    )
    tree = tree_of((SECRET.decode().replace("/", "-"), b"n" * 20))
    with pytest.raises(Found) as found:
        scanner = Scanner([SECRET.decode().replace("/", "-")])
        finish(BodyScan(scanner).steps(Pack()._add(2, tree).bytes, last=True))
    assert found.value.finding.file == f"a file name in git tree {named('tree', tree).hex()}"


def test_a_circle_of_trees_ends() -> None:
    name = named("blob", LEAK)
    one = tree_of(("x", name), ("loop/", b"l" * 20))
    pack = Pack()._add(2, one).tree(("y/", named("tree", one)), ("x", b"z" * 20)).blob(LEAK)
    assert label(pack) == "y/x"


def test_memory_is_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old bases are forgotten: what builds on them shows only what it adds."""
    monkeypatch.setattr("egress.dlp.git_objects.MOST_KEPT", 1000)
    first = b"first " + NOISE[:500]
    pack = Pack().blob(first).blob(NOISE[:800]).change(delta(first, copy(0, 6), insert(b"new")), 2)
    assert texts(pack.bytes)[-1] == b"\n\0\nnew"
    assert git_packs.MEMORY < 16 * 1024 * 1024
