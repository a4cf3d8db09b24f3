from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from paceline.errors import ConfigError
from paceline.playbook.gate import check_gates, judge
from paceline.playbook.playbook import Playbook

Written = Callable[..., Playbook]
BOOK = """
config: sasrec
phases:
  P0: {{kind: train}}
  P1: {{kind: sweep, axes: {{model.blocks: [1, 2]}}, gate: ["{gate}"]}}
  P2: {{kind: train}}
"""


@pytest.mark.parametrize(
    "gate",
    [
        "samples_per_s >= 0.92 * baseline.samples_per_s",
        "failures == 0 and speed_up > P0.samples_per_s / 1000",
        "P0.validation.ndcg_10 > 0.1",
        "P1.seconds < 60",
    ],
)
def test_names_that_somebody_reports(written: Written, gate: str) -> None:
    assert check_gates(written(BOOK.format(gate=gate))) == []


@pytest.mark.parametrize(
    ("gate", "what", "do"),
    [
        ("sample_per_s > 1", "asks for sample_per_s", "write samples_per_s"),
        ("P0.finalloss < 4", "asks for P0.finalloss, which no phase reports", "write P0.final_loss"),
        ("P2.final_loss < 4", "P2 comes later", "move the gate to P2"),
        ("hr_10 > 1", "does not report", "use one of"),
        ("samples_per_s >= ", "column 18", "mend"),
        ("samples_per_s >= __import__('os')", "column", "mend"),
    ],
)
def test_others_are_refused_before_anything_starts(written: Written, gate: str, what: str, do: str) -> None:
    (problem,) = check_gates(written(BOOK.format(gate=gate)))
    assert what in problem.what
    assert do in problem.do
    assert "book.yaml:5" in problem.where


def verdicts(*texts: str, **results: float | None) -> list[str]:
    found = judge([(text, "") for text in texts], results, {"P0": {"final_loss": 4.0}}, {"mfu": None}, "book.yaml:5")
    return [each.verdict for each in found]


def test_verdicts() -> None:
    assert verdicts("a < 2", "a < 1", "a < P0.final_loss", a=1.5) == ["met", "not met", "met"]
    assert verdicts("a < 2", "mfu > 0.3", a=None) == ["not measured", "not measured"]
    assert verdicts("a < 2", "a >= 2", "a == a", a=math.nan) == ["not met", "not met", "not met"]


def test_a_metric_that_turned_out_not_to_be_there_is_said_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"there is no test\.ndcg_20 here"):
        verdicts("test.ndcg_20 > 0", **{"test.ndcg_10": 0.3})
    with pytest.raises(ConfigError, match="neither true nor false"):
        verdicts("a + 1", a=1.0)
