"""House rules that a machine can hold: one writer of statuses, no escape hatches, small files, plain names.

Which folder may import which is in pyproject.toml: `lint-imports` checks it, as a part of `make lint`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support import ROOT

PACKAGES = ("botbottle", "egress", "supervise")


def sources() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "migrations" not in path.parts:
                yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path


ALL = dict(sources())


def test_only_decisions_writes_a_status() -> None:
    writes = re.compile(r"\.update\([^)]*\bstatus=|\.status = ", re.DOTALL)
    writers = {
        module
        for module, path in ALL.items()
        if not module.startswith("egress.proxy.")  # there a status is HTTP's
        and writes.search(path.read_text())
    }
    assert writers == {"supervise.proposals.decisions"}


def test_no_module_opens_an_escape_hatch() -> None:
    hatch = re.compile(r"mark_safe|SafeString|shell=True|verify=False|csrf_exempt|autoescape off")
    assert [module for module, path in ALL.items() if hatch.search(path.read_text())] == []


MOST_LINES, MOST_MODULES = 400, 16
# One word, one meaning: each of these once stood for half a dozen things.
OVERLOADED = set("tell told settle settled look hold held hand handed give let tend carry".split())  # noqa: SIM905


def folders() -> dict[Path, list[Path]]:
    found: dict[Path, list[Path]] = {}
    for path in ALL.values():
        found.setdefault(path.parent, []).append(path)
    return found


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for module, path in ALL.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield module, node


def test_no_folder_and_no_module_grows_too_large() -> None:
    crowded = {
        str(folder): len(paths) for folder, paths in folders().items() if len(paths) - 1 > MOST_MODULES
    }
    lengths = {module: len(path.read_text().splitlines()) for module, path in ALL.items()}
    assert (crowded, {module: lines for module, lines in lengths.items() if lines > MOST_LINES}) == ({}, {})


def test_half_of_all_functions_have_fewer_than_ten_lines() -> None:
    lengths = sorted((node.end_lineno or 0) - node.lineno + 1 for _, node in functions())
    assert lengths[len(lengths) // 2] < 10


def test_every_folder_says_what_it_is_for() -> None:
    silent = [folder for folder in folders() if not (folder / "__init__.py").exists()]
    silent += [
        path
        for module, path in ALL.items()
        if path.name == "__init__.py" and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_no_function_is_named_by_an_overloaded_verb() -> None:
    named = [
        f"{module}.{node.name}"
        for module, node in functions()
        if node.name.strip("_").split("_")[0] in OVERLOADED
    ]
    assert named == []
