"""A number in a record that somebody else wrote: another version, another program, a hand.

is_number(row.get("loss"))      -> False for None, a word, a truth value
"""

from __future__ import annotations

import math
from typing import Any, TypeGuard


def is_number(value: Any) -> TypeGuard[float]:
    """A number, finite or not; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: Any) -> TypeGuard[float]:
    return is_number(value) and math.isfinite(value)
