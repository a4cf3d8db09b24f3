"""A run directory as a long training leaves it, written without training: one row per step, spikes, evaluations, several attempts.

build_long_run(Path("runs/long"), steps=100_000)
"""

from __future__ import annotations

import math
import random
from pathlib import Path

import paceline
from paceline.files import LineWriter, write_json, write_text
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import Attempt, RunFile
from paceline.telemetry.tables import METRICS_COLUMNS, VALIDATION_COLUMNS, Table

BEGAN = 1_790_000_000.0
SPIKE = 80.0
"""the loss of one step in the middle"""


def build_long_run(root: Path, steps: int, ranks: int = 8) -> RunLayout:
    """Two attempts of eight ranks; the second goes on from the middle, a little before the first one ended."""
    layout = RunLayout(root)
    root.mkdir(parents=True)
    middle = steps // 2
    attempts = [
        Attempt(
            1, ranks, 11, BEGAN, "", ["paceline", "train"], "failed", "rank 3 was killed", middle + 9, 4, BEGAN + middle
        ),
        Attempt(2, ranks, 12, BEGAN + middle, "", ["paceline", "train"], "finished", "length", steps, 0, BEGAN + steps),
    ]
    identity = {"fingerprint": "0" * 64, "values": {}}
    run = RunFile("0123456789ab", "sasrec", "long", paceline.__version__, BEGAN, identity, "finished", "length")
    run.attempts += attempts
    run.save(layout)
    write_text(layout.config, "recipe: sasrec\ntrain:\n  epochs: 8\n  global_batch: 64\n")
    write_json(
        layout.origins,
        {"recipe": "a.yaml:1", "train.epochs": "override 'train.epochs=8'", "train.global_batch": "default"},
    )
    write_json(layout.environment, {"v": 1, "host": "node-a", "cpu": {"cores": 8}})
    _write_metrics(layout, steps, middle)
    _write_evaluations(layout, steps, middle)
    for rank in range(ranks):
        beats = LineWriter(layout.heartbeat(rank))
        for step in range(0, steps + 1, max(1, steps // 500)):
            times = {"p50": 8.1 + rank, "p90": 9.4 + rank}
            head = {"v": 1, "time": BEGAN + step, "rank": rank, "host": "node-a", "pid": 100 + rank, "attempt": 2}
            beats.write_record(head | {"step": step, "phase": "backward", "step_ms": times, "memory_gib": 1.5})
        beats.close()
    return layout


def _write_metrics(layout: RunLayout, steps: int, middle: int) -> None:
    drawn = random.Random(5)
    lines = [",".join(METRICS_COLUMNS)]
    for attempt, first, last in ((1, 1, middle + 9), (2, middle + 1, steps)):
        for step in range(first, last + 1):
            loss = 3 + 4 * math.exp(-step / 20_000) + drawn.gauss(0, 0.1)
            loss = SPIKE if step == middle + steps // 10 else loss
            parts = [abs(drawn.gauss(mean, mean / 20)) for mean in (0.2, 2.5, 4.5, 0.8)]
            wall = sum(parts) + 0.1
            cells = [
                attempt,
                step,
                step // 1000,
                step * 64,
                loss,
                0.001 * (1 - step / steps),
                abs(drawn.gauss(1, 0.2)),
                1,
            ]
            cells += [wall, wall, wall, 0.0, *parts, 64e3 / wall, 64e5 / wall, 0.41, 1.5, 97, BEGAN + step]
            lines.append(",".join(map(repr, cells)))
    layout.metrics.write_text("\n".join(lines) + "\n")


def _write_evaluations(layout: RunLayout, steps: int, middle: int) -> None:
    table = Table(layout.validation, (*VALIDATION_COLUMNS, "hr_10", "ndcg_10", "time"))
    for attempt, first, last in ((1, 0, middle), (2, middle, steps)):
        events = EventLog(layout.events, "rank 0", attempt)
        objective = {"metric": "ndcg_10", "direction": "max"}
        plan = {"start_step": first, "total_steps": steps, "total_samples": steps * 64, "unit": "items"}
        events.write("plan", world_size=8, objective=objective, **plan)
        events.choice("precision.mode", "auto", "bf16", "compute capability 9.0")
        every = max(1, steps // 400)
        for step in range(first + every, last + 1, every):
            value = 0.2 * (1 - math.exp(-step / steps * 4)) - 0.02 * (step / steps) ** 2
            metrics = {"hr_10": 2 * value, "ndcg_10": value}
            place = {"step": step, "epoch": step // 1000, "split": "validation", "num_samples": 6040}
            table.write({"attempt": attempt, "samples": step * 64, "time": BEGAN + step, **place, **metrics})
            events.write("evaluation", **place, seconds=0.2, metrics=metrics)
            events.write(
                "checkpoint", step=step, name=f"step_{step:08d}", is_best=False, bytes=10**8, shards=8, stall_ms=1.0
            )
        events.close()
    table.close()
