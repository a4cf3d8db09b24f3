"""From a run directory to a trial's numbers: wall time, windows, losses, and what it is called when it failed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from paceline.sweep.measured import Measured, from_record
from paceline.sweep.pace import TrialSpan
from paceline.sweep.results import read_trial
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import Attempt, RunFile
from paceline.telemetry.tables import METRICS_COLUMNS, VALIDATION_COLUMNS, Table

BEGAN = 1000.0
SPAN = TrialSpan(warmup_steps=20, steps=40, window=20)


def write_run(
    root: Path, rows: list[dict[str, Any]], state: str = "finished", reason: str = "", recipe: str = "sasrec"
) -> RunLayout:
    layout = RunLayout(root)
    root.mkdir()
    attempt = Attempt(1, 1, 1, BEGAN, "", [], state=state, step=rows[-1]["step"] if rows else None)
    RunFile("id", recipe, "", "0", BEGAN, {}, state=state, reason=reason, attempts=[attempt]).save(layout)
    table = Table(layout.metrics, METRICS_COLUMNS)
    for row in rows:
        table.write({"attempt": 1, **row})
    table.close()
    return layout


def rows(seconds: list[float], loss: float = 2.0) -> list[dict[str, Any]]:
    """A row each ten steps of 8 samples; the first ends 5 s after the beginning."""
    found, now = [], BEGAN + 5
    for number, taken in enumerate(seconds, 1):
        now += taken if number > 1 else 0
        step = 10 * number
        found.append({"step": step, "samples": 8 * step, "loss": loss, "window_steps": 10, "time": now})
        found[-1] |= {"step_ms_p50": taken * 100, "step_ms_p90": taken * 110, "data_ms": 1.0, "memory_gib": 0.5}
    return found


def read(root: Path, span: TrialSpan = SPAN, **more: Any) -> Measured:
    return read_trial(root, span, num_devices=2, began=BEGAN, ended=BEGAN + 20, **more)


def test_throughput_is_over_wall_time_after_the_warm_up_in_windows_that_do_not_overlap(tmp_path: Path) -> None:
    write_run(tmp_path / "r", rows([9, 7, 1, 1, 2, 2]))
    found = read(tmp_path / "r")
    assert found.status == "ok"
    assert found.samples_per_s == pytest.approx(8 * 40 / 6)
    assert found.windows == pytest.approx((8 * 20 / 2, 8 * 20 / 4))
    assert found.window_step_ms == pytest.approx((100, 200))
    assert (found.counted_steps, found.last_step, found.samples) == (40, 60, 480)
    assert found.startup_s == pytest.approx(5 + 7)
    assert (found.duration_s, found.device_s) == (20, 40)
    assert found.step_ms_p50 == pytest.approx(150)
    assert found.losses == tuple((80 * number, 2.0) for number in range(1, 7))
    assert from_record(found.to_record()) == found
    assert found.result("a", 3).round == 3


def test_without_a_warm_up_the_first_row_counts_from_its_own_beginning(tmp_path: Path) -> None:
    lines = [row | {"step_ms": 100.0} for row in rows([1, 1, 1])]
    write_run(tmp_path / "r", lines)
    found = read(tmp_path / "r", TrialSpan(warmup_steps=0, steps=30, window=10))
    assert found.samples_per_s == pytest.approx(80)
    assert len(found.windows) == 3


@pytest.mark.parametrize(
    ("error", "status"),
    [("OutOfMemoryError", "oom"), ("NonFiniteError", "diverged"), ("RankLostError", "failed")],
)
def test_what_a_rank_said_decides_the_status(tmp_path: Path, error: str, status: str) -> None:
    layout = write_run(tmp_path / "r", rows([1, 1]), "failed", "it broke")
    events = EventLog(layout.events, "rank 0", 1)
    events.write("failure", error="RankLostError", problems=[{"what": "others had gone"}], secondary=True, rank=1)
    events.write("failure", error=error, problems=[{"what": "it broke"}], secondary=False, rank=0)
    events.close()
    found = read(tmp_path / "r")
    assert (found.status, found.reason) == (status, "it broke")
    assert found.samples_per_s is None


def test_a_loss_that_is_not_a_number_at_the_end_diverged(tmp_path: Path) -> None:
    write_run(tmp_path / "r", rows([1] * 6, loss=float("nan")))
    assert read(tmp_path / "r").status == "diverged"


@pytest.mark.parametrize(
    ("seconds", "says"),
    [([1], "no step after the warm-up"), ([1, 1, 1], "it ended by itself after step 30; 60 were asked for")],
)
def test_one_that_ended_too_early_failed(tmp_path: Path, seconds: list[float], says: str) -> None:
    write_run(tmp_path / "r", rows(seconds))
    found = read(tmp_path / "r")
    assert found.status == "failed"
    assert says in found.reason


def test_who_ended_it_knows_better_and_its_numbers_count_as_far_as_they_go(tmp_path: Path) -> None:
    write_run(tmp_path / "r", rows([1] * 5), "stopped", "sigterm")
    found = read(tmp_path / "r", verdict="timeout", reason="too long")
    assert (found.status, found.reason) == ("timeout", "too long")
    assert found.samples_per_s == pytest.approx(80)


def test_no_directory_at_all(tmp_path: Path) -> None:
    found = read(tmp_path / "r", exit_code=2)
    assert (found.status, found.exit_code) == ("failed", 2)
    assert "before it had a run directory" in found.reason


def test_a_validation_metric_is_that_of_the_deciding_split_and_its_absence_is_a_failure(tmp_path: Path) -> None:
    layout = write_run(tmp_path / "r", rows([1] * 6))
    table = Table(layout.validation, (*VALIDATION_COLUMNS, "ndcg_10", "time"))
    for step, split, value in ((30, "validation", 0.1), (60, "validation", 0.3), (60, "test", 0.9)):
        table.write({"attempt": 1, "step": step, "split": split, "ndcg_10": value, "time": time.time()})
    table.close()
    span = TrialSpan(20, 40, 20, "ndcg_10")
    assert read(tmp_path / "r", span).metric == 0.3
    found = read(tmp_path / "r", TrialSpan(20, 40, 20, "hr_10"))
    assert (found.status, found.reason) == ("failed", "no evaluation reported hr_10")
    assert read(tmp_path / "r", TrialSpan(20, 40, 20, "step_ms_p50")).metric == pytest.approx(100)


def test_losses_that_are_no_numbers_are_kept_whatever_is_left_out(tmp_path: Path) -> None:
    lines = rows([1] * 700)
    lines[100]["loss"] = float("inf")
    write_run(tmp_path / "r", lines)
    found = read(tmp_path / "r", TrialSpan(20, 6980, 20))
    assert found.status == "ok"
    assert (8 * 1010, float("inf")) in found.losses
    assert len(found.losses) < 300


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({1, 2, 3}, "diverged"),
        ({1, 2, 3, 4, 5}, "ok"),  # the last row was cut short
        ({2, 4}, "ok"),  # each second row tells it
        (set[int](), "ok"),  # nobody ever told it
    ],
)
def test_a_loss_that_was_told_and_then_no_more_diverged(tmp_path: Path, told: set[int], status: str) -> None:
    write_run(tmp_path / "r", [row | ({} if n in told else {"loss": None}) for n, row in enumerate(rows([1] * 6), 1)])
    found = read(tmp_path / "r")
    assert found.status == status
    if status == "diverged":
        assert found.reason == "the loss was told until step 30 and no more"


def test_throughput_is_in_the_recipes_unit_where_it_tells_one(tmp_path: Path) -> None:
    lines = rows([1] * 6)
    for number, row in enumerate(lines):
        # The second half's samples are five times as long; one row has no times.
        row |= {"samples_per_s": 7.0, "units_per_s": 70.0 if number < 4 else 350.0} if number != 2 else {}
    layout = write_run(tmp_path / "r", lines)
    events = EventLog(layout.events, "rank 0", 1)
    events.write("plan", unit="items", start_step=0)
    events.close()
    found = read(tmp_path / "r")
    assert found.unit == "items"
    assert found.samples_per_s == pytest.approx(80)
    assert found.windows[1] == pytest.approx(80 * 50)
    # 80 samples a row: of the usual 110 / 3 units in the row that does not tell, of 10, of 50, of 50.
    assert found.units_per_s == pytest.approx(80 * (110 / 3 + 10 + 50 + 50) / 4)
    assert found.result("a", 1).samples_per_s == found.units_per_s
    assert found.result("a", 1).devices == 2


def test_counting_begins_after_the_warm_up_and_a_script_that_counts_from_zero_ends_a_line_early(tmp_path: Path) -> None:
    lines = [row | {"step": row["step"] + 1} for row in rows([1] * 6)]
    write_run(tmp_path / "r", lines)
    found = read(tmp_path / "r")
    assert (found.status, found.counted_steps) == ("ok", 40)
    assert found.startup_s == pytest.approx(5 + 1)
    write_run(tmp_path / "s", lines[2:])
    assert read(tmp_path / "s").counted_steps == 30
    write_run(tmp_path / "zero", rows([1] * 5), recipe="command")
    assert read(tmp_path / "zero").status == "ok"
    write_run(tmp_path / "short", rows([1] * 4), recipe="command")
    assert read(tmp_path / "short").status == "failed"
    # One that tells every step has told its last one.
    write_run(tmp_path / "each", [rows([1])[0] | {"step": 1}, *rows([1] * 5)], recipe="command")
    assert read(tmp_path / "each").reason == "it ended by itself after step 50; 60 were asked for"
    write_run(tmp_path / "ours", rows([1] * 5))
    assert read(tmp_path / "ours").status == "failed"


def test_another_objective_reads_another_number_of_the_same_record() -> None:
    both = Measured("ok", metrics={"ndcg_10": 0.3, "hr_10": 0.5}, metric=0.3, step_ms_p50=7.0)
    assert both.for_objective("hr_10").metric == 0.5
    assert both.for_objective("step_ms_p50").metric == 7.0
    assert both.for_objective("throughput").metric is None
    missing = both.for_objective("auc")
    assert (missing.status, missing.reason) == ("failed", "no evaluation reported auc")
    assert from_record(missing.to_record()).for_objective("hr_10").status == "ok"


def test_the_race_is_told_when_a_trial_ran() -> None:
    """The middle of its counted steps: 10 s to start, 30 s in all."""
    measured = Measured("ok", startup_s=10.0, duration_s=30.0, samples_per_s=100.0)
    assert measured.result("a", 1, began=1000.0).time_s == 1020.0
    assert measured.result("a", 1).time_s is None
