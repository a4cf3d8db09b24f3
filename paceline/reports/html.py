"""Writes a page as one self-contained HTML file: styles, charts and a few lines of script are in it, and it asks nobody for anything.

write_text(path, render_html(page))
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from paceline.reports.heat_map import HeatMap
from paceline.reports.heat_svg import draw_heat_map
from paceline.reports.lanes import Lanes
from paceline.reports.lanes_svg import draw_lanes
from paceline.reports.page import Figure, Page
from paceline.reports.svg import Drawing, draw_chart


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


def _drawn(chart: Figure) -> dict[str, Any]:
    drawing = _draw(chart)
    # Our own markup: whoever drew it has escaped every text in it.
    return {"markup": Markup(drawing.markup), "legend": drawing.legend, "hover": drawing.hover}


def _draw(chart: Figure) -> Drawing:
    if isinstance(chart, Lanes):
        return draw_lanes(chart)
    return draw_heat_map(chart) if isinstance(chart, HeatMap) else draw_chart(chart)
