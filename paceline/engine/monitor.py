"""Everything a rank writes about its training: metrics, validation, heartbeats, TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from paceline.engine.context import Context
from paceline.engine.device_stats import gpu_reading, memory_gib
from paceline.engine.outcome import Outcome
from paceline.engine.state import TrainState
from paceline.engine.tensorboard import TensorBoard
from paceline.engine.timing import WindowTimes
from paceline.files import storage_error
from paceline.telemetry.heartbeat import Heartbeat
from paceline.telemetry.tables import METRICS_COLUMNS, VALIDATION_COLUMNS, Table
from paceline.workload import Workload


class Monitor:
    """Tables and TensorBoard on rank 0, heartbeats on every rank."""

    def __init__(self, context: Context, workload: Workload, peak_flops: float | None, samples: int) -> None:
        layout, ranks, config = context.layout, context.ranks, context.config.telemetry
        self._layout = layout
        self._attempt = context.attempt
        self._ranks = ranks
        self._events = context.events
        self._pulse = context.pulse
        self._workload = workload
        self._peak_flops = peak_flops
        self._units_logged = 0
        self._samples_logged = samples
        self._last: dict[str, Any] = {}
        self._observed: dict[str, float] = {}
        """what the recipe said of its model last"""
        self._waits, self._waited_ms = 0, 0.0
        """of the pulse, at the last heartbeat"""
        self._gpu: dict[str, Any] | None = None
        """as the heartbeat's thread read it last: the driver takes its time to answer, which is not the training's"""
        self._metrics: Table | None = None
        self._validation: Table | None = None
        self._board: TensorBoard | None = None
        if ranks.is_first:
            self._metrics = Table(layout.metrics, METRICS_COLUMNS)
            self._validation = Table(layout.validation, (*VALIDATION_COLUMNS, *workload.metric_names, "time"))
            self._board = TensorBoard(layout.tensorboard) if config.tensorboard else None
        path = layout.heartbeat(ranks.rank)
        self._heartbeat = Heartbeat(path, ranks.rank, context.attempt, config.heartbeat_s, self._beat)
        self._heartbeat.start()

    def check(self) -> None:
        """Raises what went wrong while writing in the background."""
        for error in (self._heartbeat.error, self._board.error if self._board else None):
            if isinstance(error, OSError):
                raise storage_error(error, self._layout.root) from error
            if error is not None:
                raise error

    def log_window(
        self,
        state: TrainState,
        epoch: int,
        outcome: Outcome,
        lr: float,
        times: WindowTimes,
        units: int,
        graph_bytes: int,
        *,
        is_untimed: bool,
    ) -> None:
        """One row of metrics.csv, without times where a profiler ran. Gathers a few numbers from all ranks: every rank calls it at the same step."""
        closed = time.time()
        samples = state.samples - self._samples_logged
        memory = memory_gib(self._ranks.device, graph_bytes)
        gathered = self._ranks.gather_floats([units - self._units_logged, memory])
        num_units, peak_memory = float(gathered[:, 0].sum()), float(gathered[:, 1].max())
        self._units_logged, self._samples_logged = units, state.samples
        self._last = {
            "samples": state.samples,
            "loss": outcome.loss,
            "step_ms": {"p50": times.p50, "p90": times.p90},
            "phase_ms": times.phases,
            "memory_gib": memory,
        }
        if self._metrics is None:
            return
        gpu = self._gpu  # the heartbeat's thread may set another one at any time
        row = {
            "attempt": self._attempt,
            "step": state.step,
            "epoch": epoch,
            "samples": state.samples,
            "loss": outcome.loss,
            "lr": lr,
            "grad_norm": outcome.grad_norm,
            "window_steps": times.steps,
            "memory_gib": peak_memory,
            "gpu_util": gpu["util"] if gpu else None,
            "time": closed,
        }
        if not is_untimed:
            row |= times.columns() | {
                "samples_per_s": samples / times.wall_s,
                "units_per_s": num_units / times.wall_s,
                "mfu": self._mfu(num_units / times.wall_s),
            }
        self._metrics.write(row)
        if self._board is not None:
            scalars = {f"train/{name}": row[name] for name in ("loss", "lr", "grad_norm")}
            pace = {f"pace/{name}": row.get(name) for name in ("samples_per_s", "step_ms", "data_ms")}
            self._board.add(state.step, scalars | pace)

    def log_evaluation(
        self, state: TrainState, epoch: int, split: str, num_samples: int, seconds: float, metrics: Mapping[str, float]
    ) -> None:
        """One row of validation.csv, for the model of that state."""
        if self._validation is None:
            return
        place = {"step": state.step, "epoch": epoch, "split": split, "num_samples": num_samples}
        self._validation.write(
            {"attempt": self._attempt, "samples": state.samples, "time": time.time(), **place, **metrics}
        )
        self._events.write("evaluation", **place, seconds=round(seconds, 4), metrics=dict(metrics))
        if self._board is not None:
            self._board.add(state.step, {f"{split}/{name}": value for name, value in metrics.items()})

    def log_observation(self, state: TrainState, model: torch.nn.Module) -> None:
        """Figures about the model itself, such as a constraint that it has to keep."""
        if not self._ranks.is_first:
            return
        with torch.no_grad():
            values = dict(self._workload.observe(model))
        if values:
            self._observed = values
            self._events.write("observation", step=state.step, values=values)
            if self._board is not None:
                self._board.add(state.step, {f"model/{name}": value for name, value in values.items()})

    def log_baseline(self, split: str, num_samples: int) -> None:
        """What a trivial model reaches on the same samples, beside which the results are read."""
        baseline = self._workload.baseline(split, num_samples) if self._ranks.is_first else None
        if baseline is not None:
            name, metrics = baseline
            self._events.write("baseline", split=split, name=name, num_samples=num_samples, metrics=dict(metrics))

    def close(self) -> None:
        self._heartbeat.stop()
        for writer in (self._metrics, self._validation, self._board):
            if writer is not None:
                writer.close()

    def _mfu(self, units_per_s: float) -> float | None:
        flops = self._workload.step_flops(1) if self._peak_flops is not None else None
        if flops is None or self._peak_flops is None:
            return None
        return flops * units_per_s / (self._peak_flops * self._ranks.world_size)

    def _beat(self) -> dict[str, Any]:
        beat = {"step": self._pulse.step, "phase": self._pulse.phase, **self._last}
        waits, waited_ms = self._pulse.waits, self._pulse.waited_ms
        if waits > self._waits:
            beat["wait_ms"] = round((waited_ms - self._waited_ms) / (waits - self._waits), 4)
            self._waits, self._waited_ms = waits, waited_ms
        if self._observed:
            beat["model"] = self._observed
        self._gpu = gpu_reading(self._ranks.device)
        return beat | ({"gpu": self._gpu} if self._gpu else {})
