from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.reports.amounts import count, duration, figure, moment, size, spark, steps_between, text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3.18652, "3.1865"),
        (1030.4, "1,030.4"),
        (0.00050006, "0.00050006"),
        (13_170.2, "13,170"),
        (1.5e-7, "1.5000e-07"),
        (0, "0"),
        (1234567, "1,234,567"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (None, "?"),
        ("x", "?"),
        (True, "?"),
    ],
)
def test_figures(value: Any, shown: str) -> None:
    assert figure(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (64.4, "1 min 04 s"), (3725, "1 h 02 min"), (200_000, "2 d 7 h"), (None, "?")],
)
def test_durations(seconds: Any, shown: str) -> None:
    assert duration(seconds) == shown


def test_the_rest() -> None:
    assert moment(0) == "1970-01-01 00:00:00 UTC"
    assert [moment(value) for value in (None, "x", math.nan, 1e300)] == ["?"] * 4
    assert [size(value) for value in (900, 5_000_000, 3 * 2**30, None)] == ["900 B", "4.8 MiB", "3.0 GiB", "?"]
    assert (steps_between(1, 1000), steps_between(7, 7)) == ("steps 1 to 1,000", "step 7")
    assert (count(1000), count(None), count(1.5)) == ("1,000", "?", "?")
    assert text({"a": [1, None]}) == '{"a": [1, null]}'


def test_the_shape_of_a_curve() -> None:
    assert spark([8.0, 4.0, None, 1.0, math.nan]) == "█▄ ▁ "
    assert spark([2.0, 2.0]) == "▁▁"
    assert len(spark([float(value) for value in range(1000)])) == 24
    assert spark([]) == ""
