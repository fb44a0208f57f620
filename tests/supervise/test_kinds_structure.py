"""Everything that differs by kind is in the kind: nothing else asks which one a proposal is of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervise.proposals.kind import names
from tests.support import ROOT

SOURCES = [
    path
    for package in ("botbottle", "supervise")
    for path in sorted((ROOT / package).rglob("*.py"))
    if not {"kinds", "migrations"} & set(path.relative_to(ROOT).parts)
]
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
COMPARES = re.compile(r"\{%\s*(?:if|elif)\b[^%]*\.tool\s*(?:==|!=|in\b)|==\s*[\w.]+\.tool\s*%\}")
WANTED_FILTER = "{% if tool == filter.tool %}"  # of the queue: which choice is selected, whatever it is
IDENTITIES = (ast.Is, ast.IsNot)


def names_a_kind(node: ast.expr) -> bool:
    """A value that says which kind it is: `x.tool`, `tool`, `x["tool"]`, `x.get("tool")`, a kind's name."""
    match node:
        case ast.Attribute(attr="tool") | ast.Name(id="tool") | ast.Subscript(slice=ast.Constant("tool")):
            return True
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant("tool"), *_]):
            return True
        case ast.Constant(value):
            return value in names()
        case ast.Tuple(elts) | ast.List(elts) | ast.Set(elts):
            return any(names_a_kind(one) for one in elts)
    return False


def offences(source: str) -> Iterator[int]:
    """Lines that compare kinds, match on them, or use an enumeration of them."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left, operators, right):
                if not isinstance(operators[0], IDENTITIES) and any(map(names_a_kind, (left, *right))):
                    yield node.lineno
            case ast.Match(subject) if names_a_kind(subject):
                yield node.lineno
            case ast.MatchValue(value) if names_a_kind(value):
                yield node.lineno
            case ast.Attribute(value=ast.Attribute(attr="Tool")):
                yield node.lineno


@pytest.mark.parametrize(
    "source",
    [
        'if proposal.tool == "x": pass',
        'if "mcp-tool" != wanted: pass',
        'if line["tool"] == other: pass',
        'if facts.get("tool") in wanted: pass',
        'if tool == "x": pass',
        "match proposal.tool:\n    case _: pass",
        'match decided["tool"], applied:\n    case _: pass',
        'match x:\n    case "egress-block": pass',
        "x = Proposal.Tool.EGRESS",
    ],
)
def test_the_guard_sees_each_way_to_compare(source: str) -> None:
    assert list(offences(source))


def test_nothing_outside_the_kinds_compares_them() -> None:
    assert len(SOURCES) > 200
    found = {str(path.relative_to(ROOT)): list(offences(path.read_text())) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def offends(template: str) -> bool:
    text = template.replace(WANTED_FILTER, "")
    conditions = re.findall(r"\{%\s*(?:if|elif)\b.*?%\}", text)
    return bool(COMPARES.search(text)) or any(name in one for one in conditions for name in names())


def test_no_template_compares_them() -> None:
    assert offends('{% if card.proposal.tool == "x" %}') and offends('{% if x == "mcp-tool" %}')
    assert [str(path.relative_to(ROOT)) for path in TEMPLATES if offends(path.read_text())] == []


def imports(folder: Path) -> set[str]:
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize(
    ("folder", "unknown"),
    [
        ("proposals", "bottles kinds console webhooks mcp api admin cli"),
        ("bottles", "kinds console webhooks mcp api admin cli"),
        ("kinds", "console webhooks mcp api admin cli"),
    ],
)
def test_the_folders_are_layers(folder: str, unknown: str) -> None:
    above = tuple(f"supervise.{name}" for name in unknown.split())
    found = imports(ROOT / "supervise" / folder)
    assert found
    assert sorted(name for name in found if name.startswith(above)) == []


def test_the_quorum_rule_stands_in_one_place() -> None:
    rule = "settings.SUPERVISE_QUORUM"
    found = [path for path in (ROOT / "supervise").rglob("*.py") if rule in path.read_text()]
    assert found == [ROOT / "supervise" / "proposals" / "quorum.py"]
