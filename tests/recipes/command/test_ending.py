"""What is said of a script that failed."""

from __future__ import annotations

from paceline.errors import OutOfMemoryError
from paceline.recipes.command.ending import explain_end


def test_memory_is_found_in_a_line_of_any_length_and_the_message_is_short() -> None:
    error = explain_end(1, ["{" + "x" * 5000 + " CUDA out of memory"], "logs/rank_00000.log")
    assert isinstance(error, OutOfMemoryError)
    assert len(error.problems[0].what) < 400
