"""What is said of a sweep at one moment: no more than is known."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from paceline.sweep.comparison import compare
from paceline.sweep.evidence import RaceSettings, Verdict
from paceline.sweep.fingerprint import Surroundings
from paceline.sweep.ledger import Row
from paceline.sweep.matrix import build_matrix
from paceline.sweep.measured import Measured
from paceline.sweep.observation import Observation
from paceline.sweep.outcome import Ending, Sweep, describe_sweep
from paceline.sweep.plan import load_plan
from paceline.sweep.ranking import Ranking
from paceline.sweep.tables import write_outputs


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    path = tmp_path / "plan.yaml"
    path.write_text("recipe: sasrec\nset: {launch.gpus: []}\naxes: {train.micro_batch: [8, 16, 32]}\n")
    plan = load_plan(path)
    surroundings = Surroundings({"git": None}, {}, {}, {})
    return Sweep(plan, build_matrix(plan), tmp_path, surroundings, RaceSettings(steps=280), "samples", ["paceline"])


def describe(
    sweep: Sweep,
    verdicts: list[Verdict],
    state: str = "finished",
    status: str = "ok",
    counted: Collection[int] = (1, 2, 3),
    is_open: bool = False,
    **more: Any,
) -> dict[str, Any]:
    names = [case.name for case in sweep.matrix.cases]
    measured = Measured(status, samples_per_s=10.0, duration_s=4, device_s=8, startup_s=1, counted_steps=140, **more)
    rows = [
        Row(name, 1, "k" * 64, "c", "h" * 64, "o" * 64, "d", 280, 20, n, status, "", f"trials/{n}", 1, 1.0, 5.0, measured.to_record())
        for n, name in enumerate(names, 1)
    ]  # fmt: skip
    observed = [Observation(name, n, 4.6 + 0.02 * n) for name in names for n in (1, 2)]
    rivals = (
        tuple(n for n, v in zip(names, verdicts, strict=True) if v.verdict in ("tied", "undecided")) if is_open else ()
    )
    ranking = Ranking(
        tuple(names),
        dict(zip(names, verdicts, strict=True)),
        names[0],
        (),
        (),
        compare(observed) if is_open else None,
        rivals=rivals,
    )
    return describe_sweep(sweep, rows, counted, ranking, 3, [], Ending(state))


def test_the_sentence_claims_what_is_decided_and_no_more(sweep: Sweep) -> None:
    slower = Verdict("slower", 90.0, 80.0, 95.0)
    winner, tied, still = Verdict("winner", 1200.0, 1100.0, 1300.0), Verdict("tied", 99.0), Verdict("undecided", 98.0)
    text = describe(sweep, [winner, tied, slower])["sentence"]
    assert text == "micro_batch=8 wins with 1,200 samples/s; tied with it: micro_batch=16."
    found = describe(sweep, [winner, still, slower])
    assert found["sentence"].endswith("; 1 of 3 cases is undecided.")
    assert not found["is_decided"]
    assert describe(sweep, [winner, tied, slower])["is_decided"]
    ahead = describe(sweep, [Verdict("leads", 1200.0, 1100.0, 1300.0), tied, slower])
    assert ahead["sentence"] == "micro_batch=8 leads with 1,200 samples/s; not told apart from it: micro_batch=16."
    assert (ahead["winner"], ahead["best"], ahead["is_decided"]) == (None, "micro_batch=8", False)
    assert "leads so far with" in describe(sweep, [winner, tied, slower], "stopped")["sentence"]
    nothing = describe(sweep, [Verdict("failed")] * 3, status="failed")
    assert (nothing["best"], nothing["winner"]) == (None, None)
    assert nothing["sentence"] == "No case has a result (failed)."


@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_a_case_that_has_only_failed_is_not_undecided_however_the_sweep_ended(sweep: Sweep, state: str) -> None:
    still = [Verdict("undecided")] * 3
    found = describe(sweep, still, state, status="failed")
    assert {(case["verdict"], case["is_complete"]) for case in found["cases"]} == {("failed", False)}
    assert found["sentence"] == "No case has a result (failed)."
    write_outputs(sweep, found)
    for name in ("summary.md", "ranked_groups.csv", "report.html"):
        assert "undecided" not in (sweep.root / name).read_text()
    assert describe(sweep, still, "running", status="failed")["cases"][0]["verdict"] == "undecided"
    assert describe(sweep, still, state)["cases"][0]["verdict"] == "undecided"


def test_the_unit_is_what_the_trials_tell(sweep: Sweep) -> None:
    found = describe(sweep, [Verdict("winner", 1200.0)] * 3, units_per_s=1200.0, unit="items")
    assert (found["unit"], found["objective"]["unit"]) == ("items", "items/s")
    assert "with 1,200 items/s" in found["sentence"]
    assert (found["cases"][0]["units_per_s"], found["cases"][0]["samples_per_s"]) == (1200.0, 10.0)


def test_an_interval_from_nothing_to_everything_is_not_shown(sweep: Sweep) -> None:
    found = describe(
        sweep, [Verdict("winner", 5.0, 1e-6, 1e12), Verdict("slower", 4.0, 3.0, 5.0), Verdict("undecided")]
    )
    assert [(case["low"], case["high"]) for case in found["cases"]] == [(None, None), (3.0, 5.0), (None, None)]


def test_costs_are_those_that_were_seen_and_the_grids_follow_from_them(sweep: Sweep) -> None:
    costs = describe(sweep, [Verdict("winner", 5.0)] * 3)["costs"]
    assert (costs["device_s"], costs["startup_s"], costs["num_trials"]) == (24, 3, 3)
    # A trial of 280 counted steps: 2 device-seconds to start, and twice the 6 that 140 steps took.
    assert costs["full_grid_device_s"] == pytest.approx(3 * 3 * (2 + 12))


def test_what_does_not_count_is_a_cost_of_its_own(sweep: Sweep) -> None:
    costs = describe(sweep, [Verdict("winner", 5.0)] * 3, counted={1})["costs"]
    assert (costs["device_s"], costs["other_device_s"], costs["startup_s"]) == (8, 16, 1)


def test_everything_can_be_written_and_without_a_best_case_there_is_no_configuration(sweep: Sweep) -> None:
    described = describe(sweep, [Verdict("failed")] * 3, status="failed")
    write_outputs(sweep, described)
    names = {path.name for path in sweep.root.iterdir()}
    assert {"sweep.json", "summary.md", "report.html", "run_manifest.tsv", "ranked_groups.csv"} <= names
    assert not {"best.yaml", "best_config.json"} & names
    write_outputs(sweep, describe(sweep, [Verdict("winner", 5.0)] * 3))
    assert (sweep.root / "best.yaml").read_text().startswith("# micro_batch=8 wins")
    write_outputs(sweep, described)
    assert not {"best.yaml", "best_config.json"} & {path.name for path in sweep.root.iterdir()}


def test_what_was_not_told_apart_is_said_in_every_file_and_only_when_it_is_over(sweep: Sweep) -> None:
    verdicts = [Verdict("leads", 100.0, 90.0, 110.0), Verdict("tied", 99.0), Verdict("undecided", 98.0)]
    assert describe(sweep, verdicts, state="running", is_open=True)["rivals"] == []
    described = describe(sweep, verdicts, is_open=True)
    said = "not decided: micro_batch=8 is the front of 3 cases that were not told apart"
    assert described["notes"][0].startswith(said)
    write_outputs(sweep, described)
    best = json.loads((sweep.root / "best_config.json").read_text())
    assert (best["is_decided"], best["rivals"]) == (False, ["micro_batch=16", "micro_batch=32"])
    assert best["repeats_needed"] >= 3
    for file in ("best.yaml", "summary.md", "report.html"):
        assert said in (sweep.root / file).read_text(), file
