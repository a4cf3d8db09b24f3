"""The page about a playbook, as HTML and as Markdown, beside its record: replaced after every change of a phase."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from paceline.files import finite
from paceline.playbook.state import RUNNING, PlayRecord
from paceline.reports.playbook_facts import build_playbook_facts
from paceline.reports.playbook_page import build_playbook_page
from paceline.reports.writing import write_page


def write_pages(record: PlayRecord, root: Path) -> list[Path]:
    """report.html and report.md, as `paceline report DIR` writes them."""
    facts = build_playbook_facts(root, finite(asdict(record)), is_owned=record.state == RUNNING)
    return write_page(build_playbook_page(facts, root), root)
