"""Stages 1 to 3 train what stage 0 trains; their checkpoints travel between them and any number of ranks, and are exact where they stay."""

from __future__ import annotations

import math

import pytest

from paceline.telemetry.reader import Run
from tests.integration.conftest import HARD, Zygote, assert_same_bits, evaluations, losses, start_in

# Ragged: 37 samples in micro-steps of at most 7, and 4 at the end of each epoch: some micro-steps have no sample. Clipped in most steps.
COMMON = (
    "train.max_steps=50",
    "model.blocks=2",
    "train.micro_batch=7",
    "train.clip_norm=0.5",
    "train.optimizer.weight_decay=0.01",
    "evaluate.every_steps=20",
    "evaluate.block=16",
    "checkpoint.asynchronous=false",
)


def assert_close(run: Run, reference: Run) -> None:
    for ours, theirs in zip(losses(run), losses(reference), strict=True):
        assert math.isclose(ours[1], theirs[1], rel_tol=1e-5), (ours, theirs)
        assert math.isclose(ours[2], theirs[2], rel_tol=1e-4), (ours, theirs)
    assert evaluations(run) == evaluations(reference)


@pytest.fixture(scope="module")
def plain(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """DDP on 2 ranks."""
    started = start_in(zygote, tmp_path_factory.mktemp("plain"), 2, *COMMON)
    run = started.wait()
    assert started.codes == [0, 0], started.text()
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]
    assert sum(row["grad_norm"] > 0.5 for row in run.metrics) > 10, "clipped"
    return run


SLOW = pytest.mark.slow


@pytest.mark.parametrize("stage", [1, pytest.param(2, marks=SLOW), 3])
def test_two_ranks_train_what_ddp_trains(run_ranks, plain, stage):
    run = run_ranks(2, *COMMON, f"parallel.zero_stage={stage}")
    assert_close(run, plain)
    (choice,) = run.events_of("choice", about="parallel.zero_stage")
    assert choice["effective"] == stage
    assert run.events_of("choice", about="strategy")[0]["effective"] == ("zero1" if stage == 1 else "fsdp")
    if stage == 1:
        assert losses(run) == losses(plain), "the same sums, the same kernels: the same bits"
    else:
        assert "2 blocks and the rest" in choice["reason"]
        assert any("gathers the whole model" in note["what"] for note in run.events_of("note"))


def test_a_checkpoint_travels(run_ranks, start_ranks, plain):
    """Stage 1 on 2 ranks, stage 3 on 3, stage 2 on 2, stage 0 on 1: the losses of the run that was never interrupted."""
    began = 0
    for number, (ranks, stage, steps) in enumerate([(2, 1, 12), (3, 3, 26), (2, 2, 38), (1, 0, 50)]):
        overrides = (*COMMON, "checkpoint.every_steps=12", f"parallel.zero_stage={stage}")
        if steps < 50:
            stopped = start_ranks(ranks, *overrides, plant=f"request:rank=0,step={steps}")
            run = stopped.wait()
            assert stopped.codes == [0] * ranks, stopped.text()
        else:
            run = run_ranks(ranks, *overrides)
        (plan,) = run.events_of("plan")[number:]
        assert plan["start_step"] == began
        began = run.run.attempts[-1].step
    assert [attempt.world_size for attempt in run.run.attempts] == [2, 3, 2, 1]
    assert run.run.attempts[1].changed == ["parallel.zero_stage: 1 → 3 (numerics)"]
    assert_close(run, plain)


def test_batches_that_one_rank_would_cut_into_more_groups_than_another(run_ranks):
    """33 rows on the first rank, 32 on the second: two groups (groups.py) and one, were the blocks not called evenly."""
    overrides = (
        "train.max_steps=6",
        "train.global_batch=65",
        "data.users=400",
        "model.blocks=2",
        "parallel.timeout_s=15",
    )
    plain, run = (run_ranks(2, *overrides, f"parallel.zero_stage={stage}", name=f"stage-{stage}") for stage in (0, 3))
    for ours, theirs in zip(losses(run), losses(plain), strict=True):
        assert math.isclose(ours[1], theirs[1], rel_tol=1e-5), (ours, theirs)


def test_a_loss_that_is_not_a_number_is_left_out_on_all_ranks(run_ranks):
    """With plain SGD, which forgives no wrong factor, a model of every part there is, and no sample on one of three ranks now and then."""
    overrides = (
        "train.max_steps=8",
        "train.nonfinite=skip",
        "train.optimizer.name=sgd",
        "train.optimizer.lr=0.5",
        "train.optimizer.momentum=0.9",
        "model.mhc=true",
        "model.time=true",
        "model.blocks=2",
        "evaluate.every_steps=4",
    )
    runs = [
        run_ranks(3, *overrides, f"parallel.zero_stage={stage}", name=f"stage-{stage}", plant="nan:rank=1,step=3")
        for stage in (0, 3)
    ]
    small = ("parallel.zero_stage=3", "parallel.compression=bf16")
    runs.append(run_ranks(3, *overrides, *small, name="small", plant="nan:rank=1,step=3"))
    for run in runs:
        (warning,) = run.events_of("warning")
        assert "not finite on rank 1" in warning["where"]
        assert [math.isnan(row["loss"]) for row in run.metrics] == [row["step"] == 3 for row in run.metrics]
    for ours, theirs in zip(losses(runs[1]), losses(runs[0]), strict=True):
        assert math.isclose(ours[1], theirs[1], rel_tol=1e-5) or ours[0] == 3, (ours, theirs)
    for ours, theirs in zip(losses(runs[2]), losses(runs[0]), strict=True):
        assert math.isclose(ours[1], theirs[1], rel_tol=1e-2) or ours[0] == 3, (ours, theirs)
    assert losses(runs[2])[-1] != losses(runs[1])[-1], "gradients did travel in a smaller type"
    observed = [[event["values"] for event in run.events_of("observation")] for run in runs]
    assert observed[0]
    assert [list(values) for values in observed[1]] == [list(values) for values in observed[0]]


@pytest.mark.parametrize("stage", [pytest.param(1, marks=SLOW), pytest.param(2, marks=SLOW), 3])
def test_three_ranks_killed_end_with_the_same_bits(run_ranks, start_ranks, stage):
    overrides = (*HARD, "train.max_steps=12", f"parallel.zero_stage={stage}")
    reference = run_ranks(3, *overrides, name="reference")
    killed = start_ranks(3, *overrides, "checkpoint.asynchronous=false", plant="kill:rank=1,step=7")
    killed.wait()
    assert killed.codes[1] == -9
    run = run_ranks(3, *overrides)
    assert [event["start_step"] for event in run.events_of("plan")] == [0, 5]
    assert_same_bits(run, reference)
