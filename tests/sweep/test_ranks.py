"""What the ranks of a trial did: from its run directory into the ledger's record, and from there into what people read."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from paceline.diagnose.finding import Finding, Witness
from paceline.errors import ConfigError
from paceline.sweep.evidence import Verdict
from paceline.sweep.measured import from_record
from paceline.sweep.outcome import Sweep
from paceline.sweep.plan import load_plan
from paceline.sweep.ranks import judge_ranks, measure_spread, read_timing, say_verdicts
from paceline.sweep.tables import write_outputs
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.reader import Run, read_run
from paceline.telemetry.run_file import Attempt, RunFile
from paceline.telemetry.tables import METRICS_COLUMNS, TIMING_COLUMNS, Table
from tests.diagnose.test_imbalance import tables
from tests.sweep.test_outcome import describe, sweep  # noqa: F401 (a fixture)


def write_run(root: Path, given: dict[int, list[dict[str, Any]]], world_size: int = 2) -> Run:
    layout = RunLayout(root)
    root.mkdir()
    attempt = Attempt(1, world_size, 1, 1000.0, "", [], state="finished", step=600)
    RunFile("id", "sasrec", "", "0", 1000.0, {}, state="finished", attempts=[attempt]).save(layout)
    Table(layout.metrics, METRICS_COLUMNS).close()
    for rank, rows in given.items():
        table = Table(layout.timing(rank), TIMING_COLUMNS)
        for row in rows:
            table.write({"attempt": 1, **row})
        table.close()
    return read_run(root)


def test_what_comes_after_the_warm_up_is_judged(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", tables(2, slow=1, more_ms=20))
    timing = read_timing(run, warmup_steps=100)
    assert [(rows[0]["step"], len(rows)) for rows in timing.values()] == [(110, 50), (110, 50)]
    assert measure_spread(timing) == pytest.approx(20, abs=1)
    found = judge_ranks(run, timing)
    assert (found["verdict"], found["num_windows"]) == ("slow", 50)
    assert [each["rank"] for each in found["slow"]] == [1]
    assert "in 50 of 50 windows, steps 101 to 600" in found["sentence"]
    assert set(found["table"][0]) >= {"rank", "data_ms", "forward_ms", "backward_ms", "wait_ms", "optimizer_ms"}


def test_one_rank_and_ranks_that_wrote_nothing(tmp_path: Path) -> None:
    alone = write_run(tmp_path / "a", {}, world_size=1)
    assert judge_ranks(alone, read_timing(alone, 0))["verdict"] == "alone"
    silent = write_run(tmp_path / "b", {}, world_size=2)
    found = judge_ranks(silent, read_timing(silent, 0))
    assert found["verdict"] == "unknown"
    assert found["sentence"].startswith("there are no times of rank 0; telemetry.timing_ranks=all ")
    assert measure_spread({}) is None


def test_what_the_supervisor_said_stands_beside_a_table_that_cannot_tell(tmp_path: Path) -> None:
    given = tables(2, noise=0.3, windows=12)
    run = write_run(tmp_path / "r", given)
    finding = Finding(
        "straggler",
        "rank 1 makes every step 12% longer",
        "look",
        rank=1,
        witnesses=(Witness("wait", True, "it waits"),),
    )
    log = EventLog(run.layout.events, "supervisor", 1)
    log.write("finding", finding=finding.to_record())
    log.close()
    run = read_run(run.layout.root)
    assert "said: rank 1 makes every step 12% longer" in judge_ranks(run, read_timing(run, 0))["sentence"]
    sure = write_run(tmp_path / "s", tables(2, slow=0, more_ms=30))
    assert "supervisor" not in judge_ranks(sure, read_timing(sure, 0))["sentence"]


def test_the_table_is_in_every_file_where_the_plan_asks_for_it(sweep: Sweep, tmp_path: Path) -> None:  # noqa: F811
    run = write_run(tmp_path / "r", tables(2, slow=1, more_ms=20))
    ranks = judge_ranks(run, read_timing(run, 0))
    assert from_record({"status": "ok", "ranks": ranks}).ranks == ranks
    assert from_record({"status": "ok"}).ranks is None, "an older version's record"
    verdicts = [Verdict("winner", 1200.0), Verdict("tied", 99.0), Verdict("tied", 98.0)]
    described = describe(sweep, verdicts, ranks=ranks)
    write_outputs(sweep, described)
    assert not (sweep.root / "ranks.csv").exists()
    assert "Ranks" not in (sweep.root / "summary.md").read_text()
    assert "wait for others" not in (sweep.root / "report.md").read_text()

    described["plan"]["rank_table"] = True
    write_outputs(sweep, described)
    with open(sweep.root / "ranks.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["group"], row["rank"], row["slow_in"]) for row in rows[:2]] == [
        ("micro_batch=8", "0", ""),
        ("micro_batch=8", "1", "forward"),
    ]
    assert len(rows) == 6
    assert float(rows[1]["forward_ms"]) == pytest.approx(55, abs=1)
    assert {row["verdict"] for row in rows} == {"slow"}
    summary = (sweep.root / "summary.md").read_text()
    assert "### micro_batch=8, round 1" in summary
    assert "| rank | whole step | data | forward | backward | wait | optimizer | slower by |" in summary
    assert summary.count("Verdict: rank 1 makes a step ") == 3
    for name in ("report.html", "report.md"):
        assert "wait for others ms" in (sweep.root / name).read_text()
    assert say_verdicts(described)[0].startswith("micro_batch=8, round 1: rank 1 makes a step ")


def test_a_trial_of_one_rank_has_a_row_that_says_so(sweep: Sweep) -> None:  # noqa: F811
    alone = {"verdict": "alone", "sentence": "one rank: there is nothing to compare", "num_windows": 0}
    described = describe(sweep, [Verdict("winner", 1.0)] * 3, ranks=alone | {"slow": [], "table": []})
    described["plan"]["rank_table"] = True
    write_outputs(sweep, described)
    with open(sweep.root / "ranks.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["rank"], row["verdict"]) for row in rows] == [("", "alone")] * 3
    assert "one rank: there is nothing to compare" in (sweep.root / "report.md").read_text()


def test_a_script_has_no_ranks_to_compare(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("recipe: command\nrank_table: true\naxes: {params.a: [1]}\n")
    with pytest.raises(ConfigError) as caught:
        load_plan(tmp_path / "plan.yaml")
    assert any("rank_table has no meaning for recipe=command" in each.what for each in caught.value.problems)
