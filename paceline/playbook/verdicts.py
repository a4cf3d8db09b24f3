"""The words that conditions are judged with, and how a value of theirs is shown."""

from __future__ import annotations

from paceline.playbook.results import Value

MET, NOT_MET, NOT_MEASURED, NOT_JUDGED = "met", "not met", "not measured", "not judged"
LIMITS = "limits."
"""before the name of a threshold"""


def shown(value: Value) -> str:
    """A value on one line; numbers to five digits."""
    if value is None:
        return "not measured"
    if isinstance(value, bool | str):
        return str(value).lower() if isinstance(value, bool) else value
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
