"""A page as HTML and as Markdown: the same words in both, and nothing in them is taken for markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from paceline.reports.chart import Chart, Series
from paceline.reports.html import render_html
from paceline.reports.markdown import render_markdown
from paceline.reports.page import Charts, Listing, Note, Page, Section, Table

HOSTILE = '<script>alert("x")</script> & `a` | b*c*'
PAGE = Page(
    HOSTILE,
    "failed",
    "bad",
    [("directory", HOSTILE)],
    [
        Section(
            "Results",
            [Note(HOSTILE, "warning"), Table(("what", "value"), [(HOSTILE, "1"), ("b\nc", "2")], frozenset({"value"}))],
        ),
        Section(
            "Curves",
            [Charts([Chart(HOSTILE, "ms", [Series(HOSTILE, [1, 2], [4.0, 2.0]), Series("b", [1, 2], [None, None])])])],
        ),
        Section("More", [Table(("a",), [("x",)], caption="folded", is_folded=True), Listing("traceback", HOSTILE)]),
    ],
    "the end",
)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_self_contained_and_escaped() -> None:
    text = render_html(PAGE)
    tags = Tags()
    tags.feed(text)
    assert tags.opened.count("script") == 2  # the chart's numbers and our own few lines; none of theirs
    assert tags.opened.count("details") == 2
    assert tags.opened.count("table") == 2
    assert HOSTILE in tags.text
    assert "default-src 'none'" in text
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", text)
    assert not re.search(r"https?://", text)


def test_markdown_says_the_same() -> None:
    text = render_markdown(PAGE)
    lines = text.splitlines()
    assert [line for line in lines if "<script" in line] == [f"    {HOSTILE}"]  # the listing: a block of code
    assert "| what | value |" in lines
    assert lines[lines.index("| what | value |") + 1] == "|---|---:|"
    assert "| b c | 2 |" in lines
    assert '| &lt;script>alert("x")&lt;/script> &amp; \\`a\\` \\| b\\*c\\* | 1 |' in lines
    (curve,) = [line for line in lines if "█" in line]
    assert curve.endswith("| ms | █▁ | 4.0000 | 2.0000 | 2.0000 | 2 | 4.0000 | 1 |")
    assert any("nothing finite" in line for line in lines)
    assert [line for line in lines if line.startswith("## ")] == ["## Results", "## Curves", "## More"]
    assert "folded" in lines
