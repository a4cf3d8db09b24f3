"""A time span as a terminal shows it.

show_duration(3723)      -> "1:02:03"
"""

from __future__ import annotations


def show_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
