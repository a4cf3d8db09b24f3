"""Writes a page as one self-contained HTML file: styles, charts and a few lines of script are in it, and it asks nobody for anything.

write_text(path, render_html(page))
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from paceline.reports.chart import Chart
from paceline.reports.page import Page
from paceline.reports.svg import draw_chart


def render_html(page: Page) -> str:
    return _template("page.html").render(page=page)


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("paceline.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawn"] = _drawn
    environment.filters["kind"] = lambda part: type(part).__name__
    environment.filters["anchor"] = lambda title: "".join(
        letter if letter.isalnum() else "-" for letter in title.lower()
    )
    return environment.get_template(name)


def _drawn(chart: Chart) -> dict[str, Any]:
    drawing = draw_chart(chart)
    # Our own markup: draw_chart has escaped every text in it.
    return {"markup": Markup(drawing.markup), "legend": drawing.legend, "hover": drawing.hover}
