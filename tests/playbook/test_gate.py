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
        "is_decided",
        "not is_tied or P0.test.objective > 2 * P0.baseline.test.objective",
        "winner == 'blocks=2'",
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
        ("failures", "the gate of P1: `failures` is a number, which is neither", "compare it"),
        ("samples_per_s - P0.samples_per_s", "neither true nor false", "compare it"),
        ("failures == 0 and samples_per_s", "a number is neither true nor false, as `and`", "mend"),
        ("failures == 1 or not winner", "a text is neither true nor false, as `not`", "mend"),
        ("winner > 3", "a text is not a number", "mend"),
        ("is_decided + 1 > 0", "true or false is not a number", "mend"),
        ("metric > 0.1", "which P1 will not report as it is", "P1: set objective: to a validation metric"),
    ],
)
def test_others_are_refused_before_anything_starts(written: Written, gate: str, what: str, do: str) -> None:
    (problem,) = check_gates(written(BOOK.format(gate=gate)))
    assert what in problem.what
    assert do in problem.do
    assert "book.yaml:5" in problem.where


SILENT = """
config: sasrec
phases:
  P0: {kind: train}
  P1: {kind: check, gate: [equal, P0.final_loss < 4]}
  P2: {kind: export, of: P0, gate: ["speed_up > 0", bytes > 0]}
  P3: {kind: check, of: P0, gate: [equal, test.objective > 0.1]}
  P4: {kind: export, of: P0, compile_check: true, gate: [equal, P1.test.objective > 0]}
  P5: {kind: sweep, axes: {model.blocks: [1, 2]}, objective: ndcg_10, gate: [metric > 0, speed_up_low > 0]}
"""


def test_what_a_phase_will_not_report_as_it_is_written_is_refused_all_at_once(written: Written) -> None:
    problems = check_gates(written(SILENT))
    asked = [problem.what.partition(" asks for ")[2].partition(",")[0] for problem in problems]
    assert asked == ["equal", "speed_up", "P1.test.objective", "speed_up_low"]
    assert [problem.do for problem in problems][:3] == [
        "P1: say `of:` and a phase that trains",
        "P2: set compile_check: true",
        "P1: say `of:` and a phase that trains",
    ]


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


def test_a_threshold_that_nobody_has_set_was_not_measured_either() -> None:
    (judged,) = judge([("pace >= limits.pace", "")], {"pace": 3.0}, {}, {}, "here", {"pace": None})
    assert "limits.pace = not set, pace = 3" in str(judged)
