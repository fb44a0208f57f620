"""What counts as a Dockerfile, and what the agent is told when a text does not."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from botbottle.dockerfiles.parse import (
    MOST_BYTES,
    MOST_INSTRUCTIONS,
    BadDockerfile,
    check_dockerfile,
    instructions,
)

GOOD = {
    "one line": "FROM debian:12",
    "lower case": "from debian:12 as base\nrun true\n",
    "args before from": "ARG TAG=12\nARG OTHER\nFROM debian:${TAG}\n",
    "stages": "FROM a AS build\nFROM --platform=linux/amd64 b AS Final_1.x\nCOPY --from=build /a /b\n",
    "comments": "# a comment\n\nFROM a\n  # indented\nRUN true\n",
    "comment in a continuation": "FROM a\nRUN one && \\\n  # why\n\n  two\n",
    "crlf": "FROM a\r\nRUN one \\\r\n  two\r\n",
    "byte order mark": "\ufeffFROM a\n",
    "spaces after the escape": "FROM a\nRUN one \\ \t\n  two\n",
    "continued instruction": "FROM \\\n a\n",
    "windows escape": "# escape=`\nFROM a\nRUN one `\n  two\nWORKDIR C:\\\n",
    "directives": "# syntax=docker/dockerfile:1\n# check=skip=all\nFROM a\n",
    "heredoc": "FROM a\nRUN <<EOF\nNOTHING here is parsed\n EOF\nEOF\nRUN true\n",
    "quoted heredoc with tabs": "FROM a\nRUN cat <<-'END' > /x\n\tbody\n\tEND\nRUN true\n",
    "two heredocs": "FROM a\nCOPY <<one <<two /d/\nA\none\nB\ntwo\nRUN true\n",
    "onbuild heredoc": "FROM a\nONBUILD RUN <<E\nstuff\nE\n",
    "not a heredoc": 'FROM a\nRUN echo "a <<EOF b" $((1 << 2)) x<<<y\nRUN true\n',
    "json": 'FROM a\nCMD ["a", "b"]\nENTRYPOINT []\nCOPY ["a b", "/c"]\nVOLUME ["/d"]\nSHELL ["/bin/sh"]\n',
    "a test command is not json": "FROM a\nRUN [ -f /x ] && true\n",
    "pairs": 'FROM a\nENV A=1 B="two words" C=x\\ y\nENV OLD style value\nLABEL a=b\n',
    "health": "FROM a\nHEALTHCHECK --interval=5s CMD true\nHEALTHCHECK NONE\n",
    "the rest": "FROM a\nUSER u\nEXPOSE 80/tcp\nSTOPSIGNAL TERM\nMAINTAINER me\nARG X\nADD --chown=u a b\n",
    "open continuation at the end": "FROM a\nRUN true \\\n",
}

BAD = {
    "empty": ("", "the Dockerfile is empty"),
    "blank": (" \n\t\n", "the Dockerfile is empty"),
    "only comments": ("# nothing\n", "the Dockerfile has no FROM"),
    "only args": ("ARG A\n", "the Dockerfile has no FROM"),
    "nul": ("FROM a\nRUN \0", "line 2: there is the character U+0000"),
    "a line that only some call blank": (
        "FROM a\nRUN a \\\n\x1c\nADD x y\n",
        "line 3: there is the character U+001C",
    ),
    "lone carriage return": ("FROM a\nRUN a\rUSER b\n", "line 2: there is the character U+000D"),
    "two carriage returns": ("FROM a\r\r\n", "line 1: there is the character U+000D"),
    "form feed": ("FROM a\n\fRUN a\n", "line 2: there is the character U+000C"),
    "next line": ("FROM a\nRUN a \\\n\x85\n", "line 3: there is the character U+0085"),
    "no-break space": ("FROM a\nRUN\xa0a\n", "line 2: there is the character U+00A0"),
    "line separator": ("FROM a\nRUN a\u2028USER b\n", "line 2: there is the character U+2028"),
    "no from first": ("RUN true\nFROM a\n", "line 1: RUN comes before FROM"),
    "unknown": ("FROM a\n\nINSTALL curl\n", "line 3: unknown instruction 'INSTALL'"),
    "prose": ("Please add curl to the image", "line 1: unknown instruction 'PLEASE'"),
    "no arguments": ("FROM a\n# x\nRUN\n", "line 3: RUN has no arguments"),
    "no arguments after continuation": ("FROM a\nRUN \\\n\n", "line 2: RUN has no arguments"),
    "bare from": ("FROM", "line 1: FROM has no arguments"),
    "from with two words": ("FROM a b", "line 1: FROM must read"),
    "from with a bad stage": ("FROM a AS 1st", "line 1: FROM has a bad stage name"),
    "escaped escape": ("FROM a\nRUN echo \\\\\nfoo bar\n", "line 3: unknown instruction 'FOO'"),
    "escape directive": ("# escape=x\nFROM a\n", "line 1: the escape character must be"),
    "twice the directive": (
        "# escape=`\n# escape=\\\nFROM a\n",
        "line 2: the directive 'escape' stands twice",
    ),
    "late escape is a comment": ("FROM a\n# escape=`\nRUN a `\n  b c\n", "line 4: unknown instruction 'B'"),
    "open heredoc": ("FROM a\nRUN <<EOF\nbody\n EOF\n", "line 2: RUN opens a heredoc that is never closed"),
    "line after a heredoc": ("FROM a\nRUN <<E\nx\nE\nBODY x\n", "line 5: unknown instruction 'BODY'"),
    "json of numbers": ("FROM a\nCMD [1]\n", "line 2: CMD takes only text"),
    "empty run list": ("FROM a\nRUN []\n", "line 2: RUN has an empty list"),
    "flags alone": ("FROM a\nRUN --network=none\n", "line 2: RUN has flags but no arguments"),
    "copy of one": ("FROM a\nCOPY a\n", "line 2: COPY needs a source and a destination"),
    "copy json of one": ('FROM a\nCOPY ["a"]\n', "line 2: COPY needs a source and a destination"),
    "env without value": ("FROM a\nENV A\n", "line 2: ENV must read 'name=value'"),
    "env half": ("FROM a\nENV A=1 B\n", "line 2: ENV has 'B' where"),
    "nameless arg": ("FROM a\nARG =1\n", "line 2: ARG must read"),
    "shell without json": ("FROM a\nSHELL bash\n", "line 2: SHELL needs its arguments in JSON form"),
    "health of nothing": ("FROM a\nHEALTHCHECK CMD\n", "line 2: HEALTHCHECK must read"),
    "onbuild from": ("FROM a\nONBUILD FROM b\n", "line 2: ONBUILD cannot hold FROM"),
    "onbuild unknown": ("FROM a\nONBUILD GO x\n", "line 2: unknown instruction 'GO'"),
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_it_accepts(text: str) -> None:
    check_dockerfile(text)


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_it_refuses_and_names_the_line(text: str, message: str) -> None:
    with pytest.raises(BadDockerfile) as refusal:
        check_dockerfile(text)
    assert str(refusal.value).startswith(message)


def test_a_text_that_is_too_long_to_be_read_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = "FROM a\n#"
    check_dockerfile(whole + "x" * (MOST_BYTES - len(whole)))
    monkeypatch.setattr("botbottle.dockerfiles.parse.instructions", None)
    for text in (whole + "x" * MOST_BYTES, whole + "é" * (MOST_BYTES // 2)):
        with pytest.raises(BadDockerfile, match=f"at most {MOST_BYTES} are read: keep long files out"):
            check_dockerfile(text)


def test_so_many_instructions_are_read_and_no_more() -> None:
    check_dockerfile("FROM a\n" + "RUN a\n" * (MOST_INSTRUCTIONS - 1))
    with pytest.raises(BadDockerfile, match=f"line {MOST_INSTRUCTIONS + 1}: RUN is one instruction more"):
        check_dockerfile("FROM a\n" + "RUN a\n" * MOST_INSTRUCTIONS + "NOT READ\n")


@given(st.text(alphabet=st.sampled_from("FROMRUN ab\\`\n\r\t#<-=\"'[]EOF\0\x1c\xa0\ufeff")))
def test_any_text_is_accepted_or_refused_with_a_sentence(text: str) -> None:
    try:
        check_dockerfile(text)
    except BadDockerfile as refusal:
        assert str(refusal)


@pytest.mark.parametrize("filling", [" ", "\\ ", "[", '"', "'\\", "<<a ", "\\\n", "\n# a = b"])
def test_a_large_text_is_checked_in_linear_time(filling: str) -> None:
    text = "FROM a\nRUN x " + filling * (500_000 // len(filling)) + "\nx"
    started = time.perf_counter()
    with contextlib.suppress(BadDockerfile):
        list(instructions(text))  # an operator's own Dockerfile may be as long as this
    assert time.perf_counter() - started < 10, "a quadratic step takes minutes here"
