"""The line with which a failing rank tells why: found among other output, or not at all."""

from __future__ import annotations

import pytest

from paceline.errors import DataError, error_from_record
from paceline.telemetry.failure import format_failure, parse_failure


def test_a_failure_is_one_line_and_comes_back() -> None:
    error = DataError("line 3 has one field", "a.txt:3", "write user and item")
    record = error.to_record() | {"rank": 1, "step": 12, "secondary": False, "traceback": "a\nb"}
    line = format_failure(record)
    assert "\n" not in line
    found = parse_failure(line + "\n")
    assert found == record
    assert error_from_record(found).render() == error.render()


def test_a_prefix_that_a_launcher_puts_before_it_does_not_matter() -> None:
    assert parse_failure("[default0]:" + format_failure({"rank": 0})) == {"rank": 0}


@pytest.mark.parametrize(
    "line", ["", "step 3 loss 2.0", "paceline-failure", "paceline-failure {", "paceline-failure 7"]
)
def test_other_output_is_no_failure(line: str) -> None:
    assert parse_failure(line) is None
