"""Writes a page into a directory, as HTML and as Markdown, each replaced as a whole: who reads an older one meanwhile is not disturbed.

write_page(build_sweep_page(facts, root), root)     -> [root / "report.html", root / "report.md"]
"""

from __future__ import annotations

from pathlib import Path

from paceline.files import storage_errors, write_text
from paceline.reports.html import render_html
from paceline.reports.markdown import render_markdown
from paceline.reports.page import Page
from paceline.telemetry.layout import RunLayout


def write_page(page: Page, directory: Path) -> list[Path]:
    layout = RunLayout(directory)
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in ((layout.report_page, render_html(page)), (layout.report_text, render_markdown(page))):
            write_text(path, text)
    return [layout.report_page, layout.report_text]
