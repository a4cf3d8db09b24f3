"""PowerSGD where it is safe: it trains, survives a gradient that is not a number, says what a resume loses; where it would hang, all ranks refuse."""

from __future__ import annotations

import math

import pytest

from tests.integration.conftest import losses

STEPS = ("train.max_steps=12", "checkpoint.every_steps=4", "checkpoint.asynchronous=false")
COMMON = (*STEPS, "parallel.compression=powersgd")


def test_gradients_of_low_rank(run_ranks, start_ranks):
    plain = run_ranks(2, *STEPS, name="plain")
    options = (*COMMON, "parallel.powersgd.start_step=6", "parallel.powersgd.rank=1")
    run = run_ranks(2, *options, name="compressed")
    ours, theirs = losses(run), losses(plain)
    assert [row[:3] for row in ours[:6]] == [row[:3] for row in theirs[:6]], "whole gradients so far"
    assert ours[6][2] != theirs[6][2], "another gradient in step 7"
    assert ours[-1][1] < ours[0][1]
    assert math.isclose(ours[-1][1], theirs[-1][1], rel_tol=0.05)
    assert not [event for event in run.events_of("note") if "bit for bit" in event["what"]]

    # Killed and gone on: the same up to there, and what is lost is said.
    killed = start_ranks(2, *options, plant="kill:rank=1,step=10")
    killed.wait()
    again = run_ranks(2, *options)
    assert [event["start_step"] for event in again.events_of("plan")] == [0, 8]
    assert losses(again)[:8] == ours[:8]
    assert math.isclose(losses(again)[-1][1], ours[-1][1], rel_tol=0.05)
    (note,) = [event for event in again.events_of("note") if "bit for bit" in event["what"]]
    assert "step 8" in note["what"]


def test_a_gradient_that_is_not_a_number_is_forgotten(run_ranks):
    options = (*COMMON, "parallel.powersgd.start_step=0", "train.nonfinite=skip", "parallel.static_graph=true")
    run = run_ranks(2, *options, plant="nan:rank=1,step=5")
    bad = [row["step"] for row in run.metrics if not math.isfinite(row["grad_norm"])]
    assert bad in ([5], [5, 6]), "the step after it was compressed before the news came"
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]


@pytest.mark.parametrize("unused", ["false", "true"])
def test_several_buckets_on_gloo_are_refused_by_all_ranks(start_ranks, unused):
    options = (*COMMON, "parallel.bucket_mb=0.004", f"parallel.find_unused={unused}")
    refused = start_ranks(2, *options)
    run = refused.wait()
    assert refused.codes == [2, 2]
    (problem, *_) = run.events_of("failure")[0]["problems"]
    assert "several buckets" in problem["what"]
    assert "parallel.bucket_mb=1," in problem["do"]
    assert not run.metrics
