"""Every option of data parallelism trains the same: its losses are those of the plain one."""

from __future__ import annotations

import math

import pytest

STEPS = ("train.max_steps=8", "parallel.bucket_mb=0.005")


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        (("parallel.static_graph=true", "run.deterministic=true"), 1e-6),
        (("parallel.find_unused=true", "parallel.bucket_view=false", "train.accumulate=3"), 1e-6),
        (("parallel.compression=fp16", "train.optimizer.name=sgd", "train.optimizer.momentum=0.9"), 5e-3),
    ],
)
def test_options_of_ddp(run_ranks, options, tolerance):
    optimizer = [text for text in options if text.startswith("train.optimizer")]
    plain = run_ranks(1, *STEPS, *optimizer, name="plain")
    run = run_ranks(2, *STEPS, *options, name="options")
    assert plain.metrics[-1]["loss"] < plain.metrics[0]["loss"]
    for ours, theirs in zip(run.metrics, plain.metrics, strict=True):
        assert math.isclose(ours["loss"], theirs["loss"], rel_tol=tolerance), (
            ours["step"],
            ours["loss"],
            theirs["loss"],
        )


def test_a_group_of_one_rank_trains_like_no_group(run_ranks):
    plain = run_ranks(1, *STEPS, name="plain")
    group = run_ranks(1, *STEPS, "parallel.backend=gloo", name="group", group=True)
    alone = run_ranks(1, *STEPS, "parallel.backend=gloo", name="alone")
    strategies = [run.events_of("choice", about="strategy")[0]["effective"] for run in (plain, group, alone)]
    assert strategies == ["single", "ddp", "ddp"]
    losses = [[row["loss"] for row in run.metrics] for run in (plain, group, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[1] == losses[2]


def test_a_collective_that_takes_too_long_is_an_error(start_ranks):
    started = start_ranks(2, "train.max_steps=1000", "parallel.timeout_s=2", plant="stall:rank=1,step=4")
    run = started.wait()
    assert started.codes[0] == 4
    (failure,) = [event for event in run.events_of("failure") if event["rank"] == 0]
    assert failure["error"] == "RankLostError"
    assert "imeout" in failure["problems"][0]["where"] or "Timed out" in failure["problems"][0]["where"]
