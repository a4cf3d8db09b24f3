from __future__ import annotations

from pathlib import Path

import pytest

from paceline.playbook.pace import read_pace, short
from paceline.telemetry.reader import read_run
from tests.playbook.kinds.runs import write_run


def test_the_last_steps_count_and_are_named(tmp_path: Path) -> None:
    rows = [{"units_per_s": 1.0}] * 20 + [{"units_per_s": value} for value in (90.0, 110.0) * 5]
    pace = read_pace(read_run(write_run(tmp_path / "run", rows)), 50)
    assert pace is not None
    assert (pace.mean, pace.unit, pace.window) == (100.0, "items/s", "steps 101 to 150 (10 rows)")
    assert pace.std == pytest.approx(10.54, rel=1e-3)


def test_a_short_run_gives_what_it_has_without_its_first_row(tmp_path: Path) -> None:
    rows = [{"units_per_s": 1.0}, {"units_per_s": 8.0}, {"units_per_s": 10.0}]
    pace = read_pace(read_run(write_run(tmp_path / "run", rows)), 50)
    assert pace is not None
    assert (pace.mean, pace.window) == (9.0, "steps 6 to 15 (2 rows)")


def test_one_row_has_a_mean_and_no_deviation(tmp_path: Path) -> None:
    pace = read_pace(read_run(write_run(tmp_path / "run", [{"units_per_s": 1.0}, {"units_per_s": 8.0}])), 50)
    assert pace is not None
    assert (pace.mean, pace.std, pace.shown) == (8.0, None, "8 items/s")
    assert pace.window == "steps 6 to 10 (1 row)"
    cold = read_pace(read_run(write_run(tmp_path / "cold", [{"units_per_s": 1.0}])), 50)
    assert cold is not None
    assert cold.window == "steps 1 to 5 (1 row, with the warm-up)"


def test_without_units_it_is_samples_and_without_those_steps(tmp_path: Path) -> None:
    samples = read_pace(read_run(write_run(tmp_path / "a", [{"samples_per_s": 7.0}] * 4)))
    steps = read_pace(read_run(write_run(tmp_path / "b", [{"step_ms": 20.0}] * 4)))
    assert samples is not None
    assert steps is not None
    assert (samples.unit, samples.mean, steps.unit, steps.mean) == ("samples/s", 7.0, "steps/s", 50.0)


def test_profiled_rows_have_no_pace_and_no_rows_give_none(tmp_path: Path) -> None:
    rows = [{"units_per_s": 5.0}, {"units_per_s": 9.0}, {"units_per_s": None, "step_ms": None}, {"units_per_s": 11.0}]
    pace = read_pace(read_run(write_run(tmp_path / "a", rows)))
    assert pace is not None
    assert (pace.mean, pace.num_rows) == (10.0, 2)
    assert read_pace(read_run(write_run(tmp_path / "b", []))) is None


def test_a_file_is_named_from_the_playbook_on(tmp_path: Path) -> None:
    file = tmp_path / "out" / "profiled" / "run" / "profile" / "a.json"
    assert short(file) == "run/profile/a.json"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "playbook.json").touch()
    assert short(file) == "profiled/run/profile/a.json"
