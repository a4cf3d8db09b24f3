"""Four digits below a thousand, whole numbers from there on."""

from __future__ import annotations

import pytest

from paceline.telemetry.amount import show_amount


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (0.0, "0"),
        (4.6821, "4.682"),
        (-0.25, "-0.25"),
        (90, "90"),
        (999.94, "999.9"),
        (999.96, "1,000"),
        (15360.2, "15,360"),
    ],
)
def test_as_a_person_reads_it(value: float | None, shown: str) -> None:
    assert show_amount(value) == shown
