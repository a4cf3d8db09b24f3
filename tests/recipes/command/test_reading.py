"""Lines of a foreign script become the rows of a run directory."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline.config.sections import RunConfig
from paceline.recipes.command.reading import LineReader
from paceline.recipes.job import load_job
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.tables import read_table


def config(*words: str) -> RunConfig:
    given = [
        "command.argv=[python, x.py, '{params.batch}']",
        "command.params={batch: 8}",
        r"command.metrics={step: 'iter ([\d,]+)', loss: 'loss (\S+)', step_ms: '([\d.]+) ms', accuracy: 'acc ([\d.]+)'}",
        "command.samples_per_step='{params.batch}'",
        "telemetry.log_every=2",
    ]
    keys = {word.partition("=")[0] for word in words}
    return load_job("command", [*(w for w in given if w.partition("=")[0] not in keys), *words], environ={}).config


def feed(root: Path, lines: list[str], settings: RunConfig) -> RunLayout:
    layout = RunLayout(root)
    reader = LineReader(layout, 1, settings)
    for number, line in enumerate(lines):
        reader.read(line, 100.0 + number)
    reader.close()
    return layout


def test_rows_are_made_of_steps_and_wall_time(tmp_path: Path) -> None:
    lines = [f"iter {step} | loss {1 / step} | {step}.5 ms" for step in range(1, 6)]
    layout = feed(tmp_path, ["hello", *lines, "acc 0.75", "bye"], config())
    rows = read_table(layout.metrics)
    assert [row["step"] for row in rows] == [1, 2, 4, 5]
    assert [row["samples"] for row in rows] == [8, 16, 32, 40]
    assert [row["window_steps"] for row in rows] == [1, 1, 2, 1]
    assert rows[2]["loss"] == 1 / 4
    assert rows[2]["samples_per_s"] == pytest.approx(16 / 2)
    assert rows[2]["step_ms"] == pytest.approx(1000)
    assert rows[2]["step_ms_p50"] == pytest.approx(4.0)
    assert rows[0]["samples_per_s"] is None
    (evaluated,) = read_table(layout.validation)
    assert (evaluated["step"], evaluated["accuracy"], evaluated["split"]) == (5, 0.75, "validation")


def test_values_may_come_in_later_lines_and_with_thousands(tmp_path: Path) -> None:
    layout = feed(tmp_path, ["iter 1,000", "loss 2.5", "iter 1,010", "loss nan", "loss ?"], config())
    first, second = read_table(layout.metrics)
    assert (first["step"], first["loss"]) == (1000, 2.5)
    assert second["loss"] != second["loss"]


def test_what_the_script_tells_of_samples_counts_and_steps_do_where_nobody_tells(tmp_path: Path) -> None:
    metrics = r"command.metrics={step: 'iter (\d+)', samples: 'seen (\d+)', samples_per_s: '(\d+)/s'}"
    told = feed(tmp_path / "a", ["iter 2 seen 50 9/s", "iter 4 seen 90 7/s"], config(metrics))
    rows = read_table(told.metrics)
    assert [(row["samples"], row["samples_per_s"]) for row in rows] == [(50, 9.0), (90, 7.0)]
    settings = config(
        "command.samples_per_step=null",
        "command.params={}",
        "command.argv=[python]",
        r"command.metrics={step: 'iter (\d+)'}",
    )
    silent = feed(tmp_path / "b", ["iter 2", "iter 6"], settings)
    assert [row["samples"] for row in read_table(silent.metrics)] == [2, 6]


def test_a_script_that_is_read_by_nothing_leaves_no_table(tmp_path: Path) -> None:
    layout = feed(tmp_path, ["iter 1"], config("command.metrics={}"))
    assert not layout.metrics.exists()


def test_a_loss_that_is_not_a_number_is_read_by_an_expression_of_digits(tmp_path: Path) -> None:
    metrics = (
        r"command.metrics={step: 'iter (\d+)', loss: 'loss ([\d.]+)', samples: 'seen (\d+)', accuracy: 'acc ([\d.]+)'}"
    )
    layout = RunLayout(tmp_path)
    reader = LineReader(layout, 1, config(metrics, "telemetry.log_every=1"))
    said = [
        "iter 1 loss 2.5 nan",
        "iter 2 | loss nan | acc 0.5",
        "iter 3 loss Inf",
        "iter nan loss -inf",
        "nan loss",
        "seen nan",
    ]
    for number, line in enumerate(said):
        reader.read(line, 100.0 + number)
    assert reader.loss == -math.inf
    reader.close()
    losses = [row["loss"] for row in read_table(layout.metrics)]
    assert losses[0] == 2.5
    assert math.isnan(losses[1])
    assert losses[2:] == [-math.inf]
    assert [row["accuracy"] for row in read_table(layout.validation)] == [0.5]
