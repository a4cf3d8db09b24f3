"""Trains the dense model on the ranks that a launcher started, at one stage, and prints what each rank holds, as one JSON line.

    torchrun --nproc-per-node 2 -m paceline.bench.sharded '{"parameters": 10000000, "stage": 3, "steps": 12, "root": "/tmp/x"}'

Bytes are those of the memory behind the tensors (padding included), counted in the last step before its update.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from paceline.bench.dense import dense_trainer
from paceline.config.sections import RunConfig
from paceline.engine.trainer import Trainer
from paceline.telemetry.reader import read_run

_WARM_STEPS = 3


def run(parameters: int, stage: int, steps: int, root: str, engine: str = "torch") -> dict[str, Any] | None:
    """What the ranks held and how fast they were; on rank 0 only."""
    tokens = 4096 if torch.cuda.is_available() else 64
    config = RunConfig.model_validate(
        {
            "recipe": "dense",
            "train": {"global_batch": tokens, "max_steps": steps, "optimizer": {"lr": 1e-6}},
            "parallel": {"zero_stage": stage, "engine": engine},
            "evaluate": {"every_epochs": None},
            "checkpoint": {"every_steps": steps - 2, "every_epochs": None, "keep": 1},
            "telemetry": {"tensorboard": False, "log_every": steps},
        }
    )
    with dense_trainer(config, parameters, tokens, Path(root)) as (trainer, workload, context):
        ranks = context.ranks
        held = _count_in_steps(trainer)
        trainer.run()
        table = ranks.gather_floats(list(held.values())).tolist()
    if not ranks.is_first:
        return None
    stalls = [event["stall_ms"] for event in read_run(context.layout.root).events_of("checkpoint")]
    intervals = [after - before for before, after in itertools.pairwise(workload.began[-steps:])]
    name = torch.cuda.get_device_name() if ranks.device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return {
        "device": name,
        "backend": ranks.backend,
        "parameters": workload.num_parameters,
        "stage": stage,
        "ranks": [dict(zip(held, map(int, row), strict=True)) for row in table],
        "step_ms": statistics.median(intervals[_WARM_STEPS:]) * 1e3,
        "stall_ms": stalls[0],
    }


def _count_in_steps(trainer: Trainer) -> dict[str, int]:
    """Filled in anew in every step: gradients before the update, the rest after it."""
    strategy, optimizer = trainer._strategy, trainer._step._optimizer
    total_norm, drop = strategy.total_norm, strategy.drop_gradients
    held = {"weights": 0, "gradients": 0, "moments": 0, "peak": 0}
    steps = itertools.count(1)

    def count_gradients(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        # Where DeepSpeed takes a gradient over, it keeps it beside the parameter for a while.
        whole = [getattr(p, name, None) for p in strategy.model.parameters() for name in ("grad", "grad_accum")]
        held["gradients"] = count_bytes([*gradients, *(gradient for gradient in whole if gradient is not None)])
        return total_norm(gradients)

    def count_and_drop() -> None:
        if torch.cuda.is_available() and next(steps) <= _WARM_STEPS:  # a save, which may copy all of it, comes later
            held["peak"] = torch.cuda.max_memory_allocated()
        parameters = list(strategy.model.parameters())
        shares = [p.ds_tensor for p in parameters if hasattr(p, "ds_tensor")]  # stage 3 of DeepSpeed
        held["weights"] = count_bytes([*parameters, *shares, *strategy.updated_copies])
        held["moments"] = count_bytes(value for state in optimizer.state.values() for value in state.values())
        drop()

    strategy.total_norm = count_gradients  # type: ignore[method-assign]
    strategy.drop_gradients = count_and_drop  # type: ignore[method-assign]
    return held


def count_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """The memory of this rank behind some tensors; what several share counts once."""
    storages = {storage.data_ptr(): storage.nbytes() for storage in _storages(tensors)}
    return sum(storages.values())


def _storages(tensors: Iterable[torch.Tensor]) -> Iterator[torch.UntypedStorage]:
    for tensor in tensors:
        yield (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()


if __name__ == "__main__":
    told = run(**json.loads(sys.argv[1]))
    if told is not None:
        print(json.dumps(told), flush=True)
    os._exit(0)  # as a rank of ours leaves: without destroying its process group
