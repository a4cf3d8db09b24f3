"""Numbers as a person reads them, with their units. What a record does not say, or says in no usable form, is a question mark.

moment(1794712320.8)  -> "2026-11-15 03:12:00 UTC"       duration(3725)  -> "1 h 02 min"       size(5_000_000)  -> "4.8 MiB"
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from paceline.telemetry.numbers import is_finite, is_number

UNKNOWN = "?"


def count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else UNKNOWN


def counted(value: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def figure(value: Any) -> str:
    """A measured number, to five digits."""
    if not is_number(value):
        return UNKNOWN
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.4e}"
    digits = max(0, 4 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}" if isinstance(value, float) else f"{value:,}"


def moment(value: Any) -> str:
    """A time in UTC, to the second."""
    with contextlib.suppress(OverflowError, OSError, ValueError):
        if is_number(value):
            return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return UNKNOWN


def duration(seconds: Any) -> str:
    if not is_finite(seconds):
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(num_bytes: Any) -> str:
    if not is_finite(num_bytes):
        return UNKNOWN
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:,.1f} {unit}"
    return f"{num_bytes:,.0f} B"


def steps_between(first: int, last: int) -> str:
    """`steps 12 to 40`, `step 12`."""
    return f"steps {first:,} to {last:,}" if first != last else f"step {first:,}"


def text(value: Any) -> str:
    """Anything a record may hold, on one line."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.10g}"
    return json.dumps(value, ensure_ascii=False, default=str)


def spark(values: Sequence[float | None], width: int = 24) -> str:
    """The shape of a curve in one word, such as █▅▃▂▁▁; a gap where nothing finite is known."""
    bars = "▁▂▃▄▅▆▇█"
    places = [values[index * len(values) // width] for index in range(width)] if len(values) > width else list(values)
    known = [value for value in places if is_finite(value)]
    low, spread = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    scale = (len(bars) - 1) / spread if spread else 0.0
    return "".join(bars[round((value - low) * scale)] if is_finite(value) else " " for value in places)


def lane(
    low: float, high: float, spans: Sequence[tuple[float, float]], values: Sequence[float], width: int = 32
) -> str:
    """Values and ranges on a line from `low` to `high`, such as ····──●──·····."""
    scale = (width - 1) / (high - low) if high > low else 0.0
    cells = ["·"] * width
    for begin, end in spans:
        first, last = (min(width - 1, max(0, round((value - low) * scale))) for value in (begin, end))
        cells[first : last + 1] = "─" * (last + 1 - first)
    for value in values:
        if low <= value <= high:
            cells[round((value - low) * scale)] = "●"
    return "".join(cells)
