"""A forward and a backward whose results are thrown away, before the first step of every start.

Compilation begins here, with the same batch in every start: what is compiled for it must not depend on where a run goes on.

DDP reduces the first iteration of a process in another layout of buckets than all later ones. From three ranks on, that changes the
last bit of the sums: without this, the first step after a resume would not be the step that the uninterrupted run made.
"""

from __future__ import annotations

import torch

from paceline.engine.context import Context
from paceline.engine.loader import Loader, to_device
from paceline.engine.losses import Losses
from paceline.engine.out_of_memory import name_batch
from paceline.engine.precision import Precision
from paceline.engine.seeding import seed_micro_step
from paceline.engine.strategies.base import Strategy


def warm_up(context: Context, losses: Losses, strategy: Strategy, precision: Precision, loader: Loader) -> None:
    """Runs the first micro-step of step 1, always that one, so that every start ends up with the same buckets."""
    config, ranks, model = context.config, context.ranks, strategy.model
    item = next(loader.load(1, 1, in_process=True))
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    strategy.module.train()
    seed_micro_step(config.run.seed, 0, 0, ranks.rank, ranks.device)
    try:
        loss = losses.rehearse(to_device(item.batch, ranks.device))
        precision.scale(loss / config.train.global_batch).backward()  # type: ignore[no-untyped-call]
    except (RuntimeError, MemoryError) as error:
        name_batch(error, item.batch)
        raise
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    for parameter in model.parameters():
        parameter.grad = None
