"""What is written down of a bottle's secret variables, and what of it is searched for."""

from __future__ import annotations

import pytest

from egress.contract.secret_variables import LONGEST, from_bytes, searched_for, to_bytes


def test_what_is_written_is_read_back() -> None:
    values = {'quotes " and \\', "two\nlines", "zwölf Boxkämpfer", "😀 and more"}
    assert from_bytes(to_bytes(values)) == values


@pytest.mark.parametrize("content", [b"", b"[", b"{}", b"null", b"[1]", b'["a", null]', b'["\xff"]'])
def test_what_no_start_writes_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        from_bytes(content)


def test_short_values_are_words_and_not_searched_for() -> None:
    assert searched_for(["", "true", "prod", "1234567", " \t\n       "]) == frozenset()
    assert searched_for(["12345678"]) == {"12345678"}


def test_space_around_a_value_does_not_matter() -> None:
    assert searched_for([" correct horse \r\n"]) == {"correct horse"}


def test_a_very_long_value_is_known_by_its_beginning() -> None:
    assert searched_for(["a" * LONGEST + "b"]) == {"a" * LONGEST}
