"""The documents form one map: links lead somewhere, and every page can be reached from docs/README.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT

MAP = ROOT / "docs" / "README.md"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:")


def text_of(document: Path) -> str:
    """The document without its code blocks, where a bracket is not a link and a # is not a heading."""
    return re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def links_of(document: Path) -> list[tuple[Path, str]]:
    """The file and the anchor of every relative link."""
    found = []
    for match in LINK.finditer(re.sub(r"`[^`\n]*`", "", text_of(document))):
        path, _, anchor = match["target"].partition("#")
        if not ELSEWHERE.match(match["target"]):
            found.append(((document.parent / path).resolve() if path else document, anchor))
    return found


def anchors_of(document: Path) -> set[str]:
    """The anchors that GitHub makes of headings: lower case, no punctuation, a number from the second on."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", text_of(document), re.MULTILINE):
        words = LINK.sub("]", heading).replace("`", "").replace("[", "").replace("]", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        copies = [anchor, *(f"{anchor}-{number}" for number in range(1, 100))]
        anchors.add(next(copy for copy in copies if copy not in anchors))
    return anchors


def name(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_link_leads_to_a_file(document: Path) -> None:
    missing = [str(path) for path, _ in links_of(document) if not path.exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_anchor_is_a_heading(document: Path) -> None:
    lost = [
        f"{path.name}#{anchor}"
        for path, anchor in links_of(document)
        if anchor and path.suffix == ".md" and path.exists() and anchor not in anchors_of(path)
    ]
    assert lost == []


def test_every_page_can_be_reached_from_the_map() -> None:
    reached, to_read = {MAP}, [MAP]
    while to_read:
        for path, _ in links_of(to_read.pop()):
            if path.suffix == ".md" and path not in reached and path.exists():
                reached.add(path)
                to_read.append(path)
    pages = set((ROOT / "docs").rglob("*.md"))
    assert len(pages) > 20
    assert sorted(name(page) for page in pages - reached) == []


def test_every_picture_is_shown_somewhere() -> None:
    shown = {path for document in DOCUMENTS for path, _ in links_of(document)}
    pictures = set((ROOT / "docs" / "images").iterdir())
    assert pictures
    assert sorted(name(picture) for picture in pictures - shown) == []
