"""Which agents' Dockerfiles the engine is given, and that it reads them as we do."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from botbottle.dockerfiles.build_rules import (
    Needed,
    check_rebuildable,
    named_images,
    needed_images,
    one_line_each,
)
from botbottle.dockerfiles.parse import BadDockerfile, check_dockerfile, instructions

OPERATORS_OWN = """# syntax=docker/dockerfile:1
ARG BASE=debian:12
FROM --platform=linux/amd64 debian:12 AS one
ADD https://example.com/x /x
FROM $BASE
COPY --link --from=one /a /b
COPY --from=tools:2 /a /b
RUN <<EOF
FROM evil
EOF
FROM debian:12
"""
PLAIN = {
    "commands": "FROM debian:12\nRUN echo ADD https://example.com --x\n",
    "continuations and comments": "# a\nFROM a\nRUN b && \\\n  # why\n\n  c\nUSER d\n",
    "byte order mark": "\ufeffFROM a\nRUN b\n",
    "frontend": "# syntax=docker/dockerfile:1\nFROM a\n",
    "owner": "FROM a\nCOPY --chown=me_1:1000 . /x\n",
    "health": "FROM a\nHEALTHCHECK --interval=5s --retries=3 CMD true --flag\n",
    "here string": "FROM a\nRUN cat <<<x\n",
    "options of commands": 'FROM a\nCMD ["x", "--y"]\nRUN x --y\n',
    "from scratch": "FROM scratch\n",
}

REFUSED = {
    "add": ("ADD https://example.com/x /x", "takes no ADD"),
    "add in json": ('add ["https://example.com/x", "/x"]', "takes no ADD"),
    "onbuild": ("ONBUILD ADD https://example.com/x /x", "takes no ONBUILD"),
    "volume": ("VOLUME /v", "takes no VOLUME"),
    "heredoc": ("RUN <<EOF\nADD https://example.com/x /x\nEOF", "takes no heredocs"),
    "heredoc by a default": ("RUN ${X:-<<EOF}\nRUN b\nRUN EOF", "takes no heredocs"),
    "platform": ("FROM --platform=linux/s390x debian:12", "takes no '--platform=linux/s390x' for FROM"),
    "variable base": ("FROM $BASE", "FROM must name an image by its plain name"),
    "quoted base": ('FROM "debian:12"', "FROM must name an image by its plain name"),
    "escaped flag": (r"COPY --fr\om=evil.example/x /a /b", r"takes no '--fr\\\\om=evil.example/x' for COPY"),
    "quoted name of a flag": ('COPY --"from"=evil.example/x /a /b', "takes no "),
    "quoted flag": ("COPY --'from=evil.example/x' /a /b", "takes no "),
    "partly quoted flag": ("COPY --f'r'om=evil.example/x /a /b", "takes no "),
    "a letter with a space's byte": ("COPY --chown=\u00e0--from=evil.example/x /a /b", "takes no "),
    "flag and value apart": ("COPY --from evil.example/x /a /b", "takes no '--from' for COPY"),
    "variable in a flag": ("COPY --from=$X /a /b", r"takes no '--from=\$X'"),
    "end of flags": ("COPY -- --from=x /a /b", "takes no '--' for COPY"),
    "flags that need another builder": ("COPY --chmod=755 a /b", "takes no '--chmod=755' for COPY"),
    "mount": ("RUN --mount=type=bind,from=evil,target=/x true", "takes no '--mount="),
    "network": ("RUN --network=host true", "takes no '--network=host' for RUN. It takes no flags"),
    "flags of others": ("CMD --x y", "takes no '--x' for CMD"),
    "open end": ("RUN a \\ \\", "RUN ends in a backslash"),
}  # fmt: skip


@pytest.mark.parametrize("text", PLAIN.values(), ids=PLAIN)
def test_plain_ones_are_taken(text: str) -> None:
    check_rebuildable(text)


@pytest.mark.parametrize(("line", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_goes_past_the_proxy_or_cannot_be_built_is_refused_with_its_line(
    line: str, sentence: str
) -> None:
    text = f"FROM debian:12\n{line}\n"
    check_dockerfile(text)  # it is a Dockerfile for all that
    with pytest.raises(BadDockerfile, match=f"line 2: .*{sentence}"):
        check_rebuildable(text)


@pytest.mark.parametrize("directive", ["# escape=`", "# check=skip=all", "#ESCAPE = `", "# x=y\n# escape=`"])
def test_directives_that_engines_heed_differently_are_refused(directive: str) -> None:
    with pytest.raises(BadDockerfile, match=r"a rebuild takes no '# (escape|check)='"):
        check_rebuildable(f"{directive}\nFROM debian:12\nRUN true\n")


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("FROM a\nCOPY --from=b /x /y\n", [("a", True), ("b", False)]),
        ("FROM a AS Base\nFROM base\nCOPY --from=0 /a /b\nCOPY --from=BASE /a /b\n", [("a", True)]),
        ("FROM a AS late\nCOPY --from=late /x /y\n", [("a", True), ("late", False)]),
        ("FROM a\nCOPY --from=0 /x /y\n", [("a", True), ("0", False)]),
        ("FROM a\nFROM b\nCOPY --from=99999999999999999999 /x /y\n",
         [("a", True), ("b", True), ("99999999999999999999", False)]),
        ("FROM a\nCOPY --from=scratch /x /y\n", [("a", True), ("scratch", False)]),
        ("FROM a AS a\nFROM SCRATCH\n", [("a", True), ("SCRATCH", True)]),
        ("FROM a\nCOPY --chown=1 --from=b /x /y\n", [("a", True), ("b", False)]),
    ],
)  # fmt: skip
def test_each_image_that_is_no_finished_stage_must_be_there(
    text: str, needed: list[tuple[str, bool]]
) -> None:
    assert [(each.name, each.is_base) for each in needed_images(text)] == needed


def test_an_image_is_told_with_its_line() -> None:
    assert needed_images("\n# x\nFROM a\n") == [Needed(3, "a", is_base=True)]


def test_the_engine_sees_neither_comments_nor_continuations() -> None:
    text = "\ufeff# syntax=x\r\nfrom a\r\nRUN b \\\r\n  # why\r\n\r\n  c\r\nUSER d\r\n"
    assert one_line_each(text) == "\nFROM a\nRUN b   c\n\n\n\nUSER d\n"


@given(st.lists(st.sampled_from(["RUN ", "FROM a", "\n", "\\\n", "\\", " ", "#", "a", "\t", "`", "\r\n"])))
def test_the_lines_it_sees_are_the_instructions_that_were_checked(parts: list[str]) -> None:
    text = "FROM a\n" + "".join(parts)
    with contextlib.suppress(BadDockerfile):
        check_rebuildable(text)
        assert list(instructions(one_line_each(text))) == list(instructions(text))


def test_the_names_in_an_operators_own_text_are_read_as_far_as_they_are_names() -> None:
    assert named_images(OPERATORS_OWN) == ["debian:12", "tools:2"]
    assert named_images("NOTHING\n") == []
