"""A row of a run's tables, and the numbers in it: a cell may be empty, a word, or not finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.telemetry.numbers import is_finite

Row = Mapping[str, Any]


def read_number(row: Row, column: str) -> float | None:
    """None where there is no finite number."""
    value = row.get(column)
    return float(value) if is_finite(value) else None
