"""Slices, lengths and learning rates: integers that add up, and curves that end where they should."""

from __future__ import annotations

import math

import pytest

from paceline.config.arithmetic import lr_factor, plan_batches, plan_length, scaled_lr
from paceline.config.sections import LrScaling, Schedule, Train


@pytest.mark.parametrize("global_batch", [1, 2, 7, 37, 100, 128])
@pytest.mark.parametrize("micro_batch", [None, 1, 5, 16])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_slices_cover_every_batch_exactly_once(global_batch, micro_batch, world_size):
    plan = plan_batches(global_batch, micro_batch, None, world_size)
    for size in {global_batch, 1, max(1, global_batch // 3)}:
        bounds = [plan.slice(size, rank) for rank in range(world_size)]
        assert {len(of_rank) for of_rank in bounds} == {plan.accumulate}, "every rank runs as many micro-steps"
        covered = [i for of_rank in bounds for start, end in of_rank for i in range(start, end)]
        assert covered == list(range(size))
        sizes = [end - start for of_rank in bounds for start, end in of_rank]
        assert micro_batch is None or max(sizes) <= micro_batch
        assert max(plan.sizes(size)) - min(plan.sizes(size)) <= 1
    assert plan.largest_micro_batch == max(end - start for start, end in plan.slice(global_batch, world_size - 1))


def test_accumulation_follows_from_the_world_size():
    assert plan_batches(100, 16, None, 3).accumulate == math.ceil(100 / 48)
    assert plan_batches(100, None, None, 3).accumulate == 1
    assert plan_batches(96, 16, 2, 3).accumulate == 2


@pytest.mark.parametrize(
    ("keys", "steps_per_epoch", "total_steps", "total_samples"),
    [
        ({}, 11, 11, 1000),
        ({"epochs": 3}, 11, 33, 3000),
        ({"max_steps": 5}, 11, 5, 480),
        ({"max_steps": 11}, 11, 11, 1000),
        ({"max_steps": 12}, 11, 12, 1096),
        ({"epochs": 2, "max_steps": 100}, 11, 22, 2000),
        ({"epochs": 2, "max_steps_per_epoch": 4}, 4, 8, 768),
        ({"max_steps": 9, "max_steps_per_epoch": 4}, 4, 9, 864),
    ],
)
def test_length_of_a_run_of_1000_samples_in_batches_of_96(keys, steps_per_epoch, total_steps, total_samples):
    length = plan_length(Train(global_batch=96, **keys), 1000)
    assert (length.steps_per_epoch, length.total_steps, length.total_samples) == (
        steps_per_epoch,
        total_steps,
        total_samples,
    )


def test_warm_up_counts_optimizer_steps_and_ends_at_the_peak():
    schedule = Schedule(kind="cosine", warmup_steps=4, min_ratio=0.1)
    assert [lr_factor(schedule, step, 20) for step in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]
    assert lr_factor(schedule, 5, 20) == 1.0
    assert lr_factor(schedule, 13, 20) == pytest.approx(0.55)
    assert 0.1 < lr_factor(schedule, 20, 20) < 0.12
    assert lr_factor(schedule, 50, 20) == pytest.approx(0.1), "an extended run stays at min_ratio"


def test_the_other_shapes():
    assert lr_factor(Schedule(), 7, 20) == 1.0
    assert lr_factor(Schedule(kind="linear"), 6, 20) == pytest.approx(0.75)
    assert lr_factor(Schedule(kind="linear"), 20, 20) == pytest.approx(0.05), "the last step still trains"
    assert lr_factor(Schedule(kind="linear"), 1, 1) == 1.0
    assert lr_factor(Schedule(kind="linear"), 21, 20) == 0.0
    steps = Schedule(kind="step", decay_every=5, decay_factor=0.1, min_ratio=0.05)
    assert [lr_factor(steps, step, 20) for step in (1, 5, 6, 10, 11)] == pytest.approx([1, 1, 0.1, 0.1, 0.05])


def test_scaling_rules():
    assert scaled_lr(0.1, LrScaling(), 512) == 0.1
    assert scaled_lr(0.1, LrScaling(rule="linear", base_batch=128), 512) == pytest.approx(0.4)
    assert scaled_lr(0.1, LrScaling(rule="sqrt", base_batch=128), 512) == pytest.approx(0.2)
