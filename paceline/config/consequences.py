"""The arithmetic of what follows from a configuration, in words and numbers: what `explain` and a plan print.

global batch   100 = 34 + 33 + 33 samples on 3 ranks
warm-up        100 of 1000 steps (10 %)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from paceline.config.arithmetic import BatchPlan, Length, plan_batches, plan_length, scaled_lr
from paceline.config.sections import RunConfig, Train


@dataclass(frozen=True)
class Consequence:
    """One thing that follows: its name, its value for a script, its arithmetic for a person."""

    name: str
    value: int | float | str | list[int] | None
    text: str


def plan_consequences(config: RunConfig, world_size: int, num_samples: int | None = None) -> list[Consequence]:
    """Everything that can be said before training; what hangs on the data is left out where its size is not known."""
    train = config.train
    plan = plan_batches(train.global_batch, train.micro_batch, train.accumulate, world_size)
    length = plan_length(train, num_samples) if num_samples else None
    return [
        Consequence("global batch", plan.sizes(), _batch_text(plan)),
        Consequence("accumulate", plan.accumulate, _accumulate_text(train, plan)),
        *_length(train, length, num_samples),
        _warmup(train, length),
        _peak(train),
    ]


def _batch_text(plan: BatchPlan) -> str:
    sizes = plan.sizes()
    text = f"{plan.global_batch} samples on {_count(plan.world_size, 'rank')}"
    if plan.world_size > 1:
        text = f"{plan.global_batch} = {_sum(sizes)} samples on {plan.world_size} ranks"
    empty = sizes.count(0)
    return f"{text}; {_count(empty, 'rank')} without a sample" if empty else text


def _sum(sizes: list[int]) -> str:
    if len(sizes) <= 8:
        return " + ".join(str(size) for size in sizes)
    counted = [(size, len(list(run))) for size, run in groupby(sorted(sizes, reverse=True))]
    return " + ".join(f"{count} × {size}" for size, count in counted)


def _accumulate_text(train: Train, plan: BatchPlan) -> str:
    steps = f"{_count(plan.accumulate, 'micro-step')} of at most {_count(plan.largest_micro_batch, 'sample')} per rank"
    if train.accumulate is not None:
        return f"{steps}, as given"
    if train.micro_batch is None:
        return f"{steps}: no bound on micro_batch"
    return f"{steps}: ceil({plan.global_batch} / ({plan.world_size} × {train.micro_batch})) = {plan.accumulate}"


def _length(train: Train, length: Length | None, num_samples: int | None) -> list[Consequence]:
    if length is None:
        steps = train.max_steps
        known = f"at most {steps}" if steps is not None else "known when the size of the data is"
        return [Consequence("total steps", steps, known)]
    assert num_samples is not None
    per_epoch = f"ceil({num_samples} / {train.global_batch}) = {-(-num_samples // train.global_batch)}"
    if train.max_steps_per_epoch is not None:
        per_epoch += f", at most {train.max_steps_per_epoch}: {length.steps_per_epoch}"
    last = num_samples % train.global_batch
    if last and length.steps_per_epoch == -(-num_samples // train.global_batch):
        per_epoch += f"; the last one has {_count(last, 'sample')}"
    return [
        Consequence("steps per epoch", length.steps_per_epoch, per_epoch),
        Consequence("total steps", length.total_steps, _total_text(train, length)),
        Consequence("total samples", length.total_samples, f"{length.total_samples}"),
    ]


def _total_text(train: Train, length: Length) -> str:
    if train.epochs is None and train.max_steps is None:
        return f"{length.total_steps}: one epoch, as neither train.epochs nor train.max_steps is given"
    if train.epochs is None:
        return f"{length.total_steps} = max_steps, {length.total_steps / length.steps_per_epoch:.3g} epochs"
    product = f"{train.epochs} × {length.steps_per_epoch} = {train.epochs * length.steps_per_epoch}"
    return product if train.max_steps is None else f"min({product}, max_steps {train.max_steps}) = {length.total_steps}"


def _warmup(train: Train, length: Length | None) -> Consequence:
    warmup = train.schedule.warmup_steps
    total = length.total_steps if length else train.max_steps
    if not warmup or total is None:
        return Consequence("warm-up", None if warmup else 0.0, f"{warmup} steps" if warmup else "none")
    return Consequence("warm-up", warmup / total, f"{warmup} of {total} steps ({100 * warmup / total:.3g} %)")


def _peak(train: Train) -> Consequence:
    lr, scaling = train.optimizer.lr, train.lr_scaling
    peak = scaled_lr(lr, scaling, train.global_batch)
    if scaling.rule == "none" or scaling.base_batch is None:
        return Consequence("peak lr", peak, f"{peak:g}")
    ratio = f"{train.global_batch} / {scaling.base_batch}"
    return Consequence(
        "peak lr", peak, f"{lr:g} × {ratio if scaling.rule == 'linear' else f'sqrt({ratio})'} = {peak:.6g}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
