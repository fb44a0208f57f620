"""Documents for developers name files that exist, and no everyday change needs more of them than promised."""

from __future__ import annotations

import re

import pytest

from tests.support import ROOT

DOCUMENTS = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "architecture.md",
    *sorted((ROOT / "docs" / "develop").glob("*.md")),
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
CHANGES = (ROOT / "docs" / "develop" / "changes.md").read_text(encoding="utf-8")
TOP = "botbottle|supervise|egress|templates|static|tests|bench|docs"
PATH = re.compile(rf"`((?:{TOP})/[\w./-]*|(?:manage|README|CHANGELOG)\.\w+)`")
MOST = 3
MOST_BY_CHANGE = {"add a field to `egress-block`": 6}
THE_TWELVE = [
    "add a column to the queue card",
    "change how long a call waits",
    "add a DLP token shape",
    "add a field to `egress-block`",
    "add a webhook kind",
    "add a backend",
    "change the 403 text",
    "add a metric",
    "change the quorum rule",
    "fix a race in waking",
    "change the audit hash",
    "add HTTP/2 to the proxy",
]


def rows() -> dict[str, list[str]]:
    cells = [line.strip("|").split("|") for line in CHANGES.splitlines() if line.startswith("| ")]
    return {change.strip(): PATH.findall(files) for change, files in cells[1:]}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_exists(document: object) -> None:
    named = PATH.findall((ROOT / str(document)).read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_paths_are_recognised() -> None:
    assert sum(len(files) for files in rows().values()) > 20


def test_the_table_has_the_twelve_changes() -> None:
    assert list(rows()) == THE_TWELVE


@pytest.mark.parametrize("change", THE_TWELVE)
def test_a_change_needs_few_files(change: str) -> None:
    assert 1 <= len(rows()[change]) <= MOST_BY_CHANGE.get(change, MOST)


def test_the_picture_of_a_request_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = text.partition("## The path of a request")[2].split("```")[1]
    named = re.findall(r"[\w/]+\.py", picture)
    assert len(named) > 8
    places = (ROOT, ROOT / "egress" / "proxy")
    assert [path for path in named if not any((place / path).exists() for place in places)] == []
