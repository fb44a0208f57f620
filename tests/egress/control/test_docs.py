"""The documents about the proxy keep up with the code: settings, reasons, schemes, bounds."""

from __future__ import annotations

import ast
import re
from itertools import product

import pytest

from egress.dlp.containers import MOST_DEPTH, Allowance, Container, Deflated
from egress.dlp.decoding import FREE, MAX_CODINGS, MAX_DECODED, MAX_RATIO, memory_of
from egress.dlp.git_objects import MOST_KEPT, MOST_OBJECT
from egress.dlp.git_packs import Pack
from egress.dlp.scanner import memory_of_scan
from egress.dlp.websocket import MEMORY_OF_FRAMES
from egress.policy.routes import OPERATOR_SCHEMES
from tests.support import ROOT

DOCUMENT = (ROOT / "docs" / "use" / "egress.md").read_text(encoding="utf-8")
INSIDE = (ROOT / "docs" / "develop" / "egress-inside.md").read_text(encoding="utf-8")
SOURCES = [*(ROOT / "egress" / "proxy").rglob("*.py"), ROOT / "egress" / "policy" / "decide.py"]
REFUSING = {"Refusal", "BadRequest", "Unreachable", "Gone", "Verdict"}
MIB, GIB = 1024 * 1024, 1024 * 1024 * 1024
OF_THE_CONTROL_SOCKET = {"bad-query"}


def reasons() -> set[str]:
    """The codes that refusals, ends and verdicts are made with."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in REFUSING:
                words = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
                found |= {word for word in words[:2] if isinstance(word, str) and " " not in word}
    return found - {"ok"} - OF_THE_CONTROL_SOCKET


def settings() -> set[str]:
    texts = [(ROOT / name).read_text() for name in ("egress/proxy/config.py", "egress/proxy/main.py")]
    texts.append((ROOT / "botbottle" / "settings.py").read_text())
    return {name for text in texts for name in re.findall(r'"(EGRESS_[A-Z_]+)"', text)}


def test_these_lists_are_real() -> None:
    assert {"no-route", "gate", "dlp", "who", "credential-missing", "bad-target"} <= reasons()
    assert {"EGRESS_PORT", "EGRESS_DEBUG", "EGRESS_RECORD_DAYS"} <= settings()


def test_every_reason_is_explained() -> None:
    assert [reason for reason in sorted(reasons()) if f"`{reason}`" not in DOCUMENT] == []


def test_every_setting_is_listed() -> None:
    assert [name for name in sorted(settings()) if f"`{name}`" not in DOCUMENT] == []


@pytest.mark.parametrize("scheme", OPERATOR_SCHEMES)
def test_every_scheme_is_listed(scheme: str) -> None:
    assert f"| `{scheme}` |" in DOCUMENT


def kib(size: int) -> str:
    return f"{size // 1024:,}"


def test_what_is_held_is_told_as_it_is_counted() -> None:
    short, gzip = 1024, memory_of(["gzip"])
    plain = memory_of_scan([], short) - 2 * short
    coded = memory_of_scan(["gzip"], short) - gzip - 2 * short
    for told in (
        f"twice its length and {kib(plain)}; at most {kib(memory_of_scan([], -1))},",
        f"twice its length and {kib(coded)}, at most {kib(memory_of_scan(['gzip'], -1) - gzip)};",
        f"{kib(gzip)} (gzip, deflate), {kib(memory_of(['br']))} (br) or {kib(memory_of(['zstd']))} (zstd)",
        f"while it is open | {kib(MEMORY_OF_FRAMES)} |",
        f"from when it begins | {kib(held_by(Deflated))} (zip, gzip), or {kib(held_by(Pack))} (git pack) |",
    ):
        assert told in INSIDE


def held_by(container: type[Container]) -> int:
    told: list[int] = []
    Allowance(told.append).begin(container.__new__(container))
    return told[0]


def test_the_bounds_of_containers_are_those_in_the_code() -> None:
    for told in (
        f"{FREE // MIB} MiB, and beyond them {MAX_RATIO} times what came, {MAX_DECODED // GIB} GiB at most",
        f"not over {MOST_OBJECT // MIB} MiB, and among the last {MOST_KEPT // MIB} MiB",
        f"up to {('no', 'one', 'two', 'three', 'four')[MOST_DEPTH]} deep",
    ):
        assert told in in_one_line(DOCUMENT)


def test_the_least_that_may_be_held_is_told_with_what_it_is_enough_for() -> None:
    once, twice = (
        max(
            memory_of_scan(codings, -1)
            for codings in product(("gzip", "deflate", "br", "zstd"), repeat=count)
        )
        for count in (1, MAX_CODINGS)
    )
    assert f"; at least {mib(once)}, enough for one body that is compressed once;" in DOCUMENT
    assert f"; one that is compressed twice may take {mib(twice)}. " in DOCUMENT


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def mib(size: int) -> int:
    return -(-size // (1024 * 1024))


@pytest.mark.parametrize("document", [DOCUMENT, INSIDE], ids=["use", "inside"])
def test_no_line_is_too_long_to_read(document: str) -> None:
    long = [line for line in document.splitlines() if len(line) > 130 and not line.startswith("|")]
    assert long == []
