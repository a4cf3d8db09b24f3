"""What a trial is given beside its case."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.sweep.evidence import Assignment
from paceline.sweep.matrix import build_matrix
from paceline.sweep.plan import load_plan
from paceline.sweep.trial_settings import plan_trial


@pytest.mark.parametrize(("objective", "seeds"), [("throughput", [0, 0]), ("ndcg_10", [0, 1])])
def test_rounds_have_the_same_samples_for_a_pace_and_others_for_a_metric(
    tmp_path: Path, objective: str, seeds: list[int]
) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        f"recipe: sasrec\nset: {{launch.gpus: []}}\naxes: {{train.micro_batch: [8]}}\nobjective: {objective}\n"
    )
    plan = load_plan(path)
    (case,) = build_matrix(plan).cases
    trials = [plan_trial(case, plan, Assignment(case.name, number, 30), 8) for number in (1, 2)]
    assert [trial.job.config.run.seed - case.job.config.run.seed for trial in trials] == seeds
