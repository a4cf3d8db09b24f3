from __future__ import annotations

import math

from paceline.telemetry.numbers import is_finite, is_number


def test_what_is_a_number() -> None:
    written = [0, 1.5, math.nan, -math.inf, True, None, "1", [1]]
    huge = 10**400  # as JSON may have it
    assert [is_number(value) for value in written] == [True] * 4 + [False] * 4
    assert [is_finite(value) for value in written] == [True] * 2 + [False] * 6
    assert (is_number(huge), is_finite(huge), is_finite(-huge)) == (True, False, False)
