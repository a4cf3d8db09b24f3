"""The expressions of sweeps and gates: what they mean, and where an error points."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.config.expression import parse
from paceline.errors import ConfigError

VALUES = {"loss": 3.5, "baseline.loss": 4.0, "failures": 0, "recipe": "sasrec", "is_done": True, "gpus": None}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("loss < 4 and failures == 0", True),
        ("loss >= 0.9 * baseline.loss", False),
        ("1 + 2 * 3 - 4 / 2", 5),
        ("(1 + 2) * -3", -9),
        ("- -2", 2),
        ("not is_done or loss == 3.5", True),
        ("not not is_done", True),
        ("recipe == 'sasrec' and recipe != \"csa\"", True),
        ("gpus == null", True),
        ("is_done == 1", False),
        ("is_done != 1", True),
        ("failures == false", False),
        ("1e3 == 1000", True),
        (".5 < 1.", True),
        ("failures == 0 or missing > 1", True),
        ("'a' < 'b'", True),
    ],
)
def test_what_it_means(text: str, value: Any) -> None:
    assert parse(text).evaluate(VALUES) == value


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, "a name or a value was expected"),
        ("loss <", 7, "a name or a value was expected, not 'the end'"),
        ("loss < 4 4", 10, "'4' was not expected"),
        ("(loss < 4", 10, "not closed"),
        ("loss = 4", 6, "'=' means nothing"),
        ("1 < loss < 4", 10, "one comparison at a time"),
        ("__import__('os')", 11, "was not expected"),
        ("a[0]", 2, "'[' means nothing"),
        ("loss < 4 and and", 14, "was expected"),
        ("3x > 1", 1, "'3' means nothing"),
        ("(" * 60 + "1", 51, "too many parentheses"),
    ],
)
def test_what_does_not_parse_is_refused_at_its_column(text: str, column: int, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "plan.yaml:3")
    problem = caught.value.problems[0]
    assert says in problem.what
    assert f"column {column} of" in problem.what
    assert problem.where == "plan.yaml:3"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("los < 4", "use loss"),
        ("recipe < 4", "'sasrec' is not a number"),
        ("is_done + 1 > 0", "True is not a number"),
        ("loss and is_done", "3.5 is neither true nor false"),
        ("loss / failures > 1", "division by zero"),
        ("1e308 * 10 > 1", "too large"),
    ],
)
def test_what_cannot_be_told_is_an_error_when_it_is_asked(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text).evaluate(VALUES)
    assert says in caught.value.render()


def test_it_names_what_it_asks_for_and_must_be_true_or_false() -> None:
    expression = parse("loss < 2 * baseline.loss and true")
    assert expression.names == {"loss", "baseline.loss"}
    assert expression.holds(VALUES) is True
    with pytest.raises(ConfigError, match="neither true nor false"):
        parse("loss").holds(VALUES)
