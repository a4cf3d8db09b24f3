"""A link from a page to what lies near it: relative, so that the directory can be moved as a whole.

link_to(root / "trials/0007", "trials/0007", beside=root)     -> Link("trials/0007", "./trials/0007/")
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from paceline.reports.page import Link
from paceline.telemetry.layout import RunLayout


def link_to(path: Path, name: str, beside: Path) -> str | Link:
    """To what is there, or to its report where it has one; what is gone is named all the same. `beside` is the page's directory."""
    if not path.exists():
        return f"{name} (gone)"
    report = RunLayout(path).report_page
    path = report if report.exists() else path
    end = "/" if path.is_dir() else ""
    return Link(name, f"./{quote(os.path.relpath(path.absolute(), beside.absolute()))}{end}")
