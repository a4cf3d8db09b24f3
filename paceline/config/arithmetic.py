"""What follows from a configuration: slices of a batch, steps of an epoch, the learning rate at a step. Pure integers and floats.

plan = plan_batches(global_batch=100, micro_batch=16, accumulate=None, world_size=3)
plan.accumulate            -> 3            ceil(100 / (3 × 16))
plan.slice(100, rank=2)    -> [(67, 78), (78, 89), (89, 100)]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.config.sections import LrScaling, Schedule, Train


def part(length: int, index: int, count: int) -> tuple[int, int]:
    """The bounds of part `index` when `length` things are cut into `count` parts whose sizes differ by at most one."""
    return length * index // count, length * (index + 1) // count


@dataclass(frozen=True)
class BatchPlan:
    """How one global batch is cut into ranks and micro-steps."""

    global_batch: int
    world_size: int
    accumulate: int

    def slice(self, batch_size: int, rank: int) -> list[tuple[int, int]]:
        """Bounds of each of the rank's micro-steps in a batch of `batch_size` samples; an empty one has equal bounds."""
        start, end = part(batch_size, rank, self.world_size)
        micro = (part(end - start, index, self.accumulate) for index in range(self.accumulate))
        return [(start + low, start + high) for low, high in micro]

    def sizes(self, batch_size: int | None = None) -> list[int]:
        """Samples per rank of a batch (the full one by default)."""
        size = self.global_batch if batch_size is None else batch_size
        bounds = (part(size, rank, self.world_size) for rank in range(self.world_size))
        return [end - start for start, end in bounds]

    @property
    def largest_micro_batch(self) -> int:
        return math.ceil(math.ceil(self.global_batch / self.world_size) / self.accumulate)


def plan_batches(global_batch: int, micro_batch: int | None, accumulate: int | None, world_size: int) -> BatchPlan:
    """`accumulate` follows from the world size unless it is given."""
    if accumulate is None:
        accumulate = 1 if micro_batch is None else math.ceil(global_batch / (world_size * micro_batch))
    return BatchPlan(global_batch, world_size, accumulate)


@dataclass(frozen=True)
class Length:
    """How long the run is, in optimizer steps."""

    steps_per_epoch: int
    total_steps: int
    total_samples: int


def plan_length(train: Train, num_samples: int) -> Length:
    """Steps and samples of the whole run; the last partial batch of an epoch is a step, too."""
    steps = math.ceil(num_samples / train.global_batch)
    if train.max_steps_per_epoch is not None:
        steps = min(steps, train.max_steps_per_epoch)
    if train.epochs is None and train.max_steps is None:
        total = steps
    else:
        by_epochs = train.epochs * steps if train.epochs is not None else math.inf
        by_steps = train.max_steps if train.max_steps is not None else math.inf
        total = int(min(by_epochs, by_steps))
    samples_per_epoch = min(num_samples, steps * train.global_batch)
    full_epochs, rest = divmod(total, steps)
    return Length(steps, total, full_epochs * samples_per_epoch + min(rest * train.global_batch, samples_per_epoch))


def scaled_lr(lr: float, scaling: LrScaling, global_batch: int) -> float:
    """The peak learning rate after the scaling rule."""
    if scaling.rule == "none" or scaling.base_batch is None:
        return lr
    ratio = global_batch / scaling.base_batch
    return lr * (ratio if scaling.rule == "linear" else math.sqrt(ratio))


def lr_factor(schedule: Schedule, step: int, total_steps: int) -> float:
    """The learning rate of optimizer step `step` (the first is 1) as a fraction of the peak.

    The first step of warm-up already moves, and so does the last step of a decay to zero: `min_ratio` is reached after it.
    """
    if step <= schedule.warmup_steps:
        return step / schedule.warmup_steps
    if schedule.kind == "constant":
        return 1.0
    if schedule.kind == "step":
        decays = (step - schedule.warmup_steps - 1) // (schedule.decay_every or total_steps)
        return max(float(schedule.decay_factor**decays), schedule.min_ratio)
    progress = min(1.0, (step - 1 - schedule.warmup_steps) / (total_steps - schedule.warmup_steps))
    shape = 1 - progress if schedule.kind == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return schedule.min_ratio + (1 - schedule.min_ratio) * shape
