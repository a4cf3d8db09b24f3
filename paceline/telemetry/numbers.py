"""A number in a record that somebody else wrote: another version, another program, a hand.

is_number(row.get("loss"))      -> False for None, a word, a truth value
"""

from __future__ import annotations

import sys
from typing import Any, TypeGuard


def is_number(value: Any) -> TypeGuard[float]:
    """A number, finite or not; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: Any) -> TypeGuard[float]:
    # Not math.isfinite, which refuses a whole number of 400 digits; not-a-number is below nothing.
    return is_number(value) and abs(value) <= sys.float_info.max
