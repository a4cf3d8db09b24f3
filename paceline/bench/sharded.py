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
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

import paceline
from paceline.bench.dense import DenseWorkload
from paceline.config.sections import RunConfig
from paceline.engine.build import build_trainer
from paceline.engine.context import Context
from paceline.engine.ranks import Ranks, join_ranks
from paceline.engine.stop import StopWatch
from paceline.engine.trainer import Trainer
from paceline.telemetry.events import EventLog, QuietLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseWriter, create_pulse_directory, remove_pulse_directory
from paceline.telemetry.reader import read_run
from paceline.telemetry.run_file import Attempt, RunFile

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
    ranks = join_ranks(config.parallel)
    context = _open_context(config, Path(root), ranks)
    workload = DenseWorkload(parameters, tokens)
    trainer = build_trainer(context, workload)
    held = _count_in_steps(trainer)
    trainer.run()
    trainer.close()
    if ranks.is_first:
        remove_pulse_directory(Path(context.run.attempts[0].pulses))
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
        held["weights"] = count_bytes([*parameters, *shares, *getattr(strategy, "_pieces", {}).values()])
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


def _open_context(config: RunConfig, root: Path, ranks: Ranks) -> Context:
    """One run directory for all ranks, made by the first."""
    layout, attempt = RunLayout(root), 1
    message: list[Any] = [None]
    if ranks.is_first:
        layout.root.mkdir(parents=True)
        identity: dict[str, Any] = {"fingerprint": "", "values": {}}
        run_file = RunFile("bench" + os.urandom(4).hex(), "dense", "", paceline.__version__, time.time(), identity)
        pulses = create_pulse_directory(run_file.id, attempt)
        run_file.attempts.append(Attempt(attempt, ranks.world_size, os.getpid(), time.time(), str(pulses), sys.argv))
        run_file.save(layout)
        message = [run_file]
    if ranks.has_group:
        torch.distributed.broadcast_object_list(message, src=0)
    run_file = message[0]
    events = EventLog(layout.events, "rank 0", attempt) if ranks.is_first else QuietLog()
    pulse = PulseWriter(Path(run_file.attempts[0].pulses), ranks.rank, attempt)
    watch = StopWatch(layout, attempt, None)
    return Context(config, (), (), ranks, layout, run_file, attempt, events, watch, pulse)


if __name__ == "__main__":
    told = run(**json.loads(sys.argv[1]))
    if told is not None:
        print(json.dumps(told), flush=True)
