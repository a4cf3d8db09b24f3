"""Stages 1 to 3 train what stage 0 trains, and their checkpoints travel between them and any number of ranks."""

from __future__ import annotations

import math

import pytest

from tests.integration.conftest import HARD, assert_same_bits, losses

STEPS = "train.max_steps=50"
# Ragged: 37 samples on 2 ranks in micro-steps of at most 5, and 4 at the end of each epoch: micro-steps without a sample.
COMMON = (
    STEPS,
    "model.blocks=2",
    "train.micro_batch=5",
    "train.clip_norm=0.5",
    "train.optimizer.weight_decay=0.01",
    "evaluate.every_steps=25",
    "evaluate.block=16",
)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_losses(run_ranks, stage):
    plain = run_ranks(2, *COMMON, name="plain")
    run = run_ranks(2, *COMMON, f"parallel.zero_stage={stage}", name="sharded")
    assert_close(run, plain)


def assert_close(run, reference, tolerance=1e-5):
    assert len(run.metrics) == len(reference.metrics)
    for ours, theirs in zip(losses(run), losses(reference), strict=True):
        assert math.isclose(ours[1], theirs[1], rel_tol=tolerance), (ours, theirs)
        assert math.isclose(ours[2], theirs[2], rel_tol=1e-3), (ours, theirs)
