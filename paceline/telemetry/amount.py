"""A measured value, as tables, lines and sentences have it; the pages of reports have a digit more (paceline/reports/amounts.py).

show_amount(15360.2)      -> "15,360"       show_amount(4.6821)      -> "4.682"       show_amount(None)      -> ""
"""

from __future__ import annotations


def show_amount(value: float | None) -> str:
    """Four digits below a thousand: a row of a language model takes seconds, and its pace is a few a second."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 999.95 else f"{value:.4g}"
