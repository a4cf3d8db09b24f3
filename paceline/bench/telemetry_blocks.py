"""Trains a dense model and turns its telemetry off and on, block by block; rank 0 prints how long each block took.

    python -m paceline.bench.telemetry_blocks '{"pairs": 10, "block_steps": 20, "parameters": 1000000, "tokens": 256, "root": "/tmp/x"}'

Off means off: no pulse, no timer, no row, no heartbeat, no TensorBoard, and none of the waiting that a row costs. There is no setting for
that; the parts of the trainer are silenced from here.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from paceline.bench.dense import dense_trainer
from paceline.config.sections import RunConfig, Telemetry
from paceline.engine.context import Context
from paceline.engine.outcome import Outcome
from paceline.engine.timing import STEP_PHASES
from paceline.engine.trainer import Trainer

_WARM_BLOCKS = 2
_ROWS = 30


class Switch:
    """Silences everything that a rank writes or measures about its training."""

    def __init__(self, trainer: Trainer, context: Context) -> None:
        heartbeat = trainer._monitor._heartbeat
        self._silent: list[tuple[Any, str]] = [
            *((context.pulse, name) for name in ("beat", "enqueue", "complete")),
            *(
                (trainer._timer, name)
                for name in ("begin_step", "enter", "end_step", "close_window", "pause", "resume")
            ),
            (trainer, "_log_window"),
            (trainer._monitor, "check"),
            (trainer._rank_times, "see_step"),
            (heartbeat._beats, "write"),
        ]
        self._heartbeat, self._collect = heartbeat, heartbeat._collect
        self.is_on = True

    def set(self, is_on: bool) -> None:
        if is_on == self.is_on:
            return
        self.is_on = is_on
        for part, name in self._silent:
            if is_on:
                delattr(part, name)  # the class's own shows again
            else:
                setattr(part, name, _do_nothing)
        self._heartbeat._collect = self._collect if is_on else dict


class Borders:
    """When each block began, by the host's clock."""

    def __init__(self) -> None:
        self._began: list[float] = []

    def mark(self) -> None:
        self._began.append(time.perf_counter())

    def spans(self) -> list[float]:
        """Seconds from each mark to the next."""
        return [after - before for before, after in itertools.pairwise(self._began)]


class CudaBorders(Borders):
    """By the device's: nobody waits for it where a block ends."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        self._events[-1].record()

    def spans(self) -> list[float]:
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(self._events)]


def _do_nothing(*_: Any, **__: Any) -> None:
    return None


def plan_blocks(pairs: int) -> list[bool]:
    """Whether telemetry is on in each block: on, off, off, on, … after the warm-up, so that a drift favours neither."""
    order = [is_on for pair in range(pairs) for is_on in ((True, False) if pair % 2 == 0 else (False, True))]
    return [True] * _WARM_BLOCKS + order


def run(pairs: int, block_steps: int | None, parameters: int, tokens: int | None, root: str) -> dict[str, Any] | None:
    """The seconds of each block of rank 0, and the cost of each part; None on the other ranks."""
    # Many short blocks see the same machine in turn. On a GPU a block's last row is written beside the first step of the next one, as ever.
    block_steps = block_steps or Telemetry().log_every * (2 if torch.cuda.is_available() else 1)
    tokens = tokens or (4096 if torch.cuda.is_available() else 256)
    blocks = plan_blocks(pairs)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    config = RunConfig.model_validate(
        {
            "recipe": "dense",
            # One step more than the blocks have: it ends the last one.
            "train": {
                "global_batch": 8 * world_size,
                "max_steps": len(blocks) * block_steps + 1,
                "optimizer": {"lr": 1e-6},
            },
            "parallel": {"check_every": 0},
            "evaluate": {"every_epochs": None},
            "checkpoint": {"enabled": False},
        }
    )
    assert block_steps % config.telemetry.log_every == 0, "a row belongs to one block"
    with dense_trainer(config, parameters, tokens, Path(root)) as (trainer, workload, context):
        switch = Switch(trainer, context)
        borders: Borders = CudaBorders() if context.ranks.device.type == "cuda" else Borders()
        run_step = trainer._step.run

        def timed(step: int, batches: Any) -> Any:
            block, first = divmod(step - 1, block_steps)
            if first == 0:
                borders.mark()
                switch.set(blocks[block] if block < len(blocks) else True)
            return run_step(step, batches)

        trainer._step.run = timed  # type: ignore[method-assign]
        trainer.run()
        direct = measure_parts(trainer, context)
        name = torch.cuda.get_device_name() if context.ranks.device.type == "cuda" else "CPU"
        if not context.ranks.is_first:
            return None
        measured = list(zip(blocks, borders.spans(), strict=True))[_WARM_BLOCKS:]
    return {
        "device": f"{name}, {torch.get_num_threads()} threads" if name == "CPU" else name,
        "world_size": world_size,
        "parameters": workload.num_parameters,
        "tokens": tokens,
        "block_steps": block_steps,
        "blocks": [[is_on, span] for is_on, span in measured],
        "direct_us": direct,
    }


def measure_parts(trainer: Trainer, context: Context) -> dict[str, float]:
    """Microseconds of each call that telemetry makes, in loops of their own: hardly any noise, and nothing of what they delay."""
    pulse, timer, monitor = context.pulse, trainer._timer, trainer._monitor
    state, heartbeat = trainer.state, trainer._monitor._heartbeat

    def borders() -> None:
        timer.begin_step(1)
        for phase in STEP_PHASES:
            timer.enter(phase)
        timer.end_step()

    timer.resume()
    costs = {"pulse": _time_us(lambda: pulse.beat(state.step, "forward"), 5000), "borders": _time_us(borders, 500)}
    timer.close_window()
    # Per step; on a GPU one step of a window is read. A single rank waits for nobody.
    costs["wait"] = _time_us(trainer._rank_times.see_step, 1000)
    rows_s, outcome = list[float](), Outcome(state.step, 1.0, 1.0, False, False, False, None)
    for _ in range(_ROWS):
        for _ in range(Telemetry().log_every):
            borders()
        began = time.perf_counter()
        window = timer.close_window()
        assert window is not None
        monitor.log_window(state, 0, outcome, 1e-6, window.read(), trainer._step.units, 0, is_untimed=False)
        rows_s.append(time.perf_counter() - began)
    costs["row"] = statistics.median(rows_s) * 1e6
    costs["heartbeat"] = _time_us(lambda: heartbeat._beats.write(heartbeat._collect()), 30)
    return {name: round(value, 3) for name, value in costs.items()}


def _time_us(call: Callable[[], object], times: int) -> float:
    """The median over pieces of the loop: another process that comes between counts once."""
    pieces = []
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(times // 10):
            call()
        pieces.append((time.perf_counter() - began) * 1e6 / (times // 10))
    return statistics.median(pieces)


if __name__ == "__main__":
    told = run(**json.loads(sys.argv[1]))
    if told is not None:
        print(json.dumps(told), flush=True)
    os._exit(0)  # as a rank of ours leaves: without destroying its process group
