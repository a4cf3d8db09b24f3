"""All pages together: the index names each of them, and a link to a heading finds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.rooms import ROOT
from tests.architecture.test_docs import DOCUMENTS

LINK = re.compile(r"\]\(([^)\s]*?\.md|)#([^)\s]+)\)")


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"(?s)^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    headings = re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_a_link_to_a_heading_finds_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    wanted = [((page.parent / name) if name else page, anchor) for name, anchor in LINK.findall(text)]
    assert [(other.name, anchor) for other, anchor in wanted if anchor not in slugs(other)] == []


def test_the_index_names_every_page_once() -> None:
    index = ROOT / "docs" / "README.md"
    named = re.findall(r"\]\(([\w-]+\.md)\)", index.read_text(encoding="utf-8"))
    assert sorted(named) == sorted(page.name for page in index.parent.glob("*.md") if page != index)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_every_row_of_a_table_has_as_many_cells_as_its_head(page: Path) -> None:
    """A `|` inside code ends the cell as well, unless it is escaped."""
    text = re.sub(r"(?s)^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    width, wrong = 0, []
    for line in text.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        if cells and width and cells != width:
            wrong.append(line)
        width = (width or cells) if cells else 0
    assert wrong == []
