"""Guarantee 4: killed at any instant and started again, a run gives the same losses and weights, bit for bit.

Here the ranks run as under a foreign launcher (forked, fast); test_kills.py does the same through the whole command.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import paceline
from paceline.files import read_json
from paceline.telemetry.checkpoints import STATE, find_checkpoint
from paceline.telemetry.reader import Run, read_run
from tests.integration.conftest import (
    HARD,
    WITHOUT_GPU,
    Zygote,
    assert_same_bits,
    checkpoint_steps,
    evaluations,
    final_files,
    losses,
    start_in,
    tiny,
)

AT_ONCE = "checkpoint.asynchronous=false"
"""A checkpoint is there before the next step begins, so that a test knows which ones a kill has left."""
HARDER = (*HARD, "train.schedule.kind=cosine", "telemetry.ledger=true", AT_ONCE)
LENGTH = "train.max_steps=14"
# 152 samples in batches of 37: five steps are an epoch.


@pytest.fixture(scope="module")
def reference(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The uninterrupted run that the interrupted ones are compared with."""
    started = start_in(zygote, tmp_path_factory.mktemp("uninterrupted"), 3, LENGTH, *HARDER)
    run = started.wait()
    assert started.codes == [0, 0, 0], started.text()
    return run


def starts(run: Run) -> list[int]:
    """The step that each attempt began at."""
    return [event["start_step"] for event in run.events_of("plan")]


def test_three_ranks_killed_twice_end_with_the_same_bits(run_ranks, start_ranks, reference: Run) -> None:
    for plant in ("kill:rank=1,step=7", "kill:rank=0,step=12"):
        killed = start_ranks(3, LENGTH, *HARDER, plant=plant)
        killed.wait()
        assert -9 in killed.codes
    run = run_ranks(3, LENGTH, *HARDER)
    assert starts(run) == [0, 5, 10]  # checkpoints at every fourth step, and at the best evaluation
    assert_same_bits(run, reference)


def test_every_stop_leaves_a_checkpoint_at_the_agreed_step(run_ranks, start_ranks, reference: Run) -> None:
    """SIGTERM, a request, the time limit: one after the other in one run, which ends with the same bits."""
    stops = {
        "sigterm": ("terminate:rank=1,step=3",),
        "stop_command": ("request:rank=2,step=7",),
        "max_hours": ("overdue:rank=0,step=11", "stop.max_hours=0.0001"),
    }
    for reason, (plant, *overrides) in stops.items():
        stopped = start_ranks(3, LENGTH, *HARDER, *overrides, plant=plant)
        run = stopped.wait()
        assert stopped.codes == [130 if reason == "sigterm" else 0, 0, 0], stopped.text()
        end = run.events_of("end")[-1]
        assert (end["state"], end["reason"]) == ("stopped", reason)
        newest = find_checkpoint(run.layout.root)
        assert newest.step == end["step"] == run.run.attempts[-1].step
        assert newest.manifest.attempt == run.run.attempts[-1].attempt
        assert not (run.layout.checkpoints / "final").exists(), "it is not finished"
    run = run_ranks(3, LENGTH, *HARDER)
    assert starts(run)[1:] == [end["step"] for end in run.events_of("end")[:-1]]
    assert_same_bits(run, reference)


@pytest.mark.parametrize("step", [5, 14], ids=["an evaluation", "the last evaluation"])
def test_an_evaluation_that_a_stop_cut_short_is_made_up_for(run_ranks, start_ranks, reference: Run, step: int) -> None:
    stopped = start_ranks(3, LENGTH, *HARDER, plant=f"terminate_in_evaluation:rank=1,step={step}")
    run = stopped.wait()
    assert stopped.codes == [130, 0, 0], stopped.text()
    assert run.events_of("end")[-1]["step"] == step
    assert find_checkpoint(run.layout.root).step == step
    assert step not in [row["step"] for row in run.validation]
    run = run_ranks(3, LENGTH, *HARDER)
    assert starts(run) == [0, step]
    assert_same_bits(run, reference)


def test_another_number_of_ranks_in_the_middle_of_an_epoch(run_ranks, start_ranks) -> None:
    """2, then 3, then 2 ranks: in each step the samples of the uninterrupted run on one rank; none twice, none missing."""
    common = ("train.max_steps=20", "train.micro_batch=5", "telemetry.ledger=true", "checkpoint.every_steps=3", AT_ONCE)
    reference = run_ranks(1, *common, name="reference")
    for ranks, step in ((2, 8), (3, 14)):
        killed = start_ranks(ranks, *common, plant=f"kill:rank=1,step={step}")
        killed.wait()
        assert killed.codes[1] == -9
    run = run_ranks(2, *common)
    assert [attempt.world_size for attempt in run.run.attempts] == [2, 3, 2]
    began = starts(run)
    assert began == [0, 6, 12]
    assert all(step % 5 for step in began[1:]), "in the middle of an epoch"
    assert [(event["saved_world_size"], event["world_size"]) for event in run.events_of("resume")] == [(2, 3), (3, 2)]

    def counted(line: dict) -> bool:
        """Not done again by a later attempt."""
        return not any(start < line["step"] for start in began[line["attempt"] :])

    order, expected = (
        samples_of_steps([line for line in each.ledger() if each is reference or counted(line)])
        for each in (run, reference)
    )
    assert order == expected
    for epoch in range(4):
        seen = sorted(sample for step in range(5 * epoch + 1, 5 * epoch + 6) for sample in order[step])
        assert seen == list(range(152)), f"epoch {epoch}"
    for ours, theirs in zip(losses(run), losses(reference), strict=True):
        assert ours[0] == theirs[0]
        assert math.isclose(ours[1], theirs[1], rel_tol=1e-5), f"step {ours[0]}: {ours[1]} against {theirs[1]}"


def test_a_checkout_that_was_edited_in_between_is_named(tmp_path: Path) -> None:
    """From a copy of the package, as the whole command, with an edit that changes no sum: that nobody can tell from outside."""
    copy = tmp_path / "checkout"
    skipped = shutil.ignore_patterns("__pycache__", "bench", "serving", "nsa", "csa", "tenrec")
    shutil.copytree(Path(paceline.__file__).parent, copy / "paceline", ignore=skipped)
    root = tmp_path / "run"

    def train(max_steps: int) -> str:
        words = ["train", "sasrec", *tiny(f"train.max_steps={max_steps}"), "--nproc", "1", "--out", str(root)]
        command = [sys.executable, "-m", "paceline", *words]
        environment = WITHOUT_GPU | {"PYTHONPATH": str(copy)}
        done = subprocess.run(command, env=environment, cwd=copy, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    train(4)
    assert "software changed" not in train(6), "the same code, on another day"
    with (copy / "paceline" / "engine" / "losses.py").open("a") as stream:
        stream.write("\n# pulled\n")
    shown = train(8)
    run = read_run(root)
    assert starts(run) == [0, 4, 6]
    (note,) = (event for event in run.events_of("note") if "software" in event["what"])
    before, after = (attempt.software["paceline.engine"] for attempt in run.run.attempts[1:])
    assert (note["attempt"], note["changed"]) == (3, [f"paceline.engine: {before} → {after}"])
    assert f"{note['what']}; {note['why']}; {note['changed'][0]}" in shown


def samples_of_steps(ledger: list[dict]) -> dict[int, list[int]]:
    """Step -> its sample ids, in the order of ranks and micro-steps."""
    steps = defaultdict(list)
    for line in sorted(ledger, key=lambda line: (line["step"], line["rank"], line["micro_step"])):
        steps[line["step"]] += line["ids"]
    return dict(steps)


def test_patience_is_counted_across_a_resume(run_ranks, start_ranks) -> None:
    # A learning rate of almost nothing never improves on the first evaluation: it ends after three more.
    common = (
        "train.max_steps=1000",
        "train.optimizer.lr=1e-12",
        "evaluate.every_steps=4",
        "stop.patience=3",
        "stop.min_delta=0.01",
        "checkpoint.every_steps=2",
        AT_ONCE,
    )
    killed = start_ranks(2, *common, plant="kill:rank=1,step=13")
    killed.wait()
    run = run_ranks(2, *common)
    assert starts(run) == [0, 12]
    end = run.events_of("end")[-1]
    assert (end["state"], end["reason"], end["step"]) == ("finished", "early_stop", 16)
    assert find_checkpoint(run.layout.root, "best").step == 4
    assert find_checkpoint(run.layout.root, "final").step == 16


def test_a_step_that_is_not_a_number_is_in_no_checkpoint(run_ranks, start_ranks, reference: Run) -> None:
    """At the step of a checkpoint, and just before one; the same command fails at the same step, until the cause is gone."""
    for attempt, step in enumerate((8, 8, 7), start=1):
        failed = start_ranks(3, LENGTH, *HARDER, plant=f"nan:rank=1,step={step}")
        run = failed.wait()
        assert failed.codes == [4, 4, 4]
        (problem, *_) = run.events_of("failure", attempt=attempt)[0]["problems"]
        assert f"step {step} " in problem["where"]
        assert checkpoint_steps(run.layout.root) == [4, 5]
    run = run_ranks(3, LENGTH, *HARDER)
    assert starts(run) == [0, 5, 5, 5]
    assert_same_bits(run, reference)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_other_optimizers_go_on_with_the_same_bits(run_ranks, start_ranks, optimizer: str) -> None:
    common = (LENGTH, "checkpoint.every_steps=4", AT_ONCE, "model.dropout=0.2", f"train.optimizer.name={optimizer}")
    if optimizer == "sgd":
        common += ("train.optimizer.momentum=0.9",)
    reference = run_ranks(1, *common, name="reference")
    killed = start_ranks(1, *common, plant="kill:step=7")
    killed.wait()
    run = run_ranks(1, *common)
    assert starts(run) == [0, 4]
    assert_same_bits(run, reference)


def test_a_finished_run_is_extended(run_ranks) -> None:
    """At a constant rate it is the longer run bit for bit; a schedule stays as it was laid out, and ends before."""
    common = ("model.dropout=0.2", "evaluate.every_steps=4", "checkpoint.every_steps=4")
    constant, cosine = (
        (*common, "train.schedule.kind=constant"),
        (*common, "train.schedule.kind=cosine", "train.schedule.min_ratio=0.1"),
    )
    reference = run_ranks(1, LENGTH, *constant, name="reference")
    run_ranks(1, "train.max_steps=8", *constant)
    run = run_ranks(1, LENGTH, *constant)
    assert starts(run) == [0, 8]
    assert losses(run) == losses(reference)
    # Besides, it was tested where it first ended.
    assert [row for row in evaluations(run) if row[0] != 8 or "test" not in row] == evaluations(reference)
    ours, theirs = (final_files(each.layout.root) for each in (run, reference))
    assert ours.pop(STATE) != theirs.pop(STATE)
    assert ours == theirs
    state, expected = (read_json(find_checkpoint(each.layout.root, "final").path / STATE) for each in (run, reference))
    assert (state.pop("horizon"), expected.pop("horizon")) == (8, 14)
    assert state == expected

    run_ranks(1, "train.max_steps=8", *cosine, name="cosine")
    run = run_ranks(1, LENGTH, *cosine, name="cosine")
    rates = [row["lr"] for row in run.metrics]
    assert rates[:8] == sorted(rates[:8], reverse=True)
    assert rates[7] > 0.003 * 0.1
    assert rates[8:] == pytest.approx([0.003 * 0.1] * 6, rel=1e-9)


def test_what_is_kept(run_ranks, start_ranks) -> None:
    """The newest two, and the best one however old it is; nothing of a killed save."""
    common = (
        "train.max_steps=12",
        "evaluate.every_steps=3",
        "stop.min_delta=10",  # nothing is so much better than the first one
        "checkpoint.every_steps=2",
        AT_ONCE,
        "checkpoint.keep=2",
    )
    killed = start_ranks(2, *common, plant="kill:rank=0,step=9")
    killed.wait()
    assert {3, 6} <= set(checkpoint_steps(killed.root))
    run = run_ranks(2, *common)
    assert checkpoint_steps(run.layout.root) == [3, 10, 12]
    links = {word: find_checkpoint(run.layout.root, word).step for word in ("latest", "best", "final")}
    assert links == {"latest": 12, "best": 3, "final": 12}
    names = {path.name for path in run.layout.checkpoints.iterdir()}
    assert names == {"step_00000003", "step_00000010", "step_00000012", *links}


def test_the_end_of_a_run_is_as_complete_as_the_rest(run_ranks) -> None:
    """The last step is saved by the calendar before it is evaluated: `best` and the last row are right all the same."""
    run = run_ranks(
        1,
        "train.max_steps=8",
        "telemetry.log_every=3",
        "evaluate.every_epochs=1",
        "checkpoint.every_steps=4",
    )
    assert [row["step"] for row in run.metrics] == [3, 6, 8]
    scores = {row["step"]: row["ndcg_10"] for row in run.validation if row["split"] == "validation"}
    assert list(scores) == [5, 8]
    best = find_checkpoint(run.layout.root, "best")
    assert best.step == max(scores, key=scores.__getitem__) == 8
    state = read_json(best.path / STATE)
    assert (state["best_step"], state["best"], state["evaluated_step"]) == (8, scores[8], 8)
