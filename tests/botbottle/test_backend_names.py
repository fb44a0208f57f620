"""How backends differ is asked of `backends.traits`: no code outside their package compares their names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from botbottle import backends
from tests.support import ROOT

SOURCES = [
    path
    for folder in ("botbottle", "supervise", "egress")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not path.is_relative_to(ROOT / "botbottle" / "backends")
]


def compared_names(source: str) -> Iterator[int]:
    """The lines in which the name of a backend is compared with something, or matched."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            parts: list[ast.AST] = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        else:
            continue
        for part in parts:
            literals = part.elts if isinstance(part, ast.Tuple | ast.List | ast.Set) else [part]
            if any(isinstance(each, ast.Constant) and each.value in backends.NAMES for each in literals):
                yield node.lineno if isinstance(node, ast.Compare) else node.value.lineno


def test_no_name_of_a_backend_is_compared_outside_of_their_package() -> None:
    assert SOURCES
    found = [
        f"{path.relative_to(ROOT)}:{line}" for path in SOURCES for line in compared_names(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "plan.backend == 'local'",
        "'docker' != x",
        "x in ('docker', 'other')",
        "match x:\n    case 'smolmachines':\n        pass",
    ],
)
def test_the_search_finds_what_it_is_for(source: str) -> None:
    assert list(compared_names(source))


def test_every_backend_has_traits_and_a_class_of_its_name(tmp_path: Path) -> None:
    for name in backends.NAMES:
        assert backends.get(name, tmp_path).name == name
    with pytest.raises(backends.BackendError, match="no backend 'other'"):
        backends.traits("other")
