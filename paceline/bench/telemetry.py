"""What telemetry costs a step: on against off, in turn within one run of the same processes, with a confidence interval.

On is the default telemetry (rows, TensorBoard, heartbeats, pulses); off is none at all. Beside the comparison stands the direct sum: how
long the calls of telemetry take by themselves, per step. The comparison holds everything, and the machine's noise; the sum has hardly any
noise, and does not see what the calls delay.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.bench.intervals import Interval, median_interval
from paceline.bench.ranks import run_ranks
from paceline.config.sections import Telemetry

_TARGET_GPU, _TARGET_CPU = 0.005, 0.01
_BEATS = 4
"""of the pulse per step: data, forward, backward, optimizer; a row adds one"""


@dataclass(frozen=True)
class Cost:
    """What was measured."""

    told: dict[str, Any]
    """by the measured run, see telemetry_blocks.py"""

    @property
    def step_ms(self) -> float:
        """without telemetry"""
        spans: list[float] = [span for is_on, span in self.told["blocks"] if not is_on]
        return statistics.median(spans) * 1e3 / int(self.told["block_steps"])

    @property
    def shares(self) -> list[float]:
        """Of each pair of neighbouring blocks: by how much the one with telemetry took longer."""
        blocks = self.told["blocks"]
        pairs = zip(blocks[::2], blocks[1::2], strict=True)
        return [(a[1] / b[1] if a[0] else b[1] / a[1]) - 1 for a, b in pairs]

    @property
    def share(self) -> Interval:
        return median_interval(self.shares)

    @property
    def direct_us(self) -> float:
        """Of a step: all calls of telemetry, each as often as it happens."""
        costs, default = self.told["direct_us"], Telemetry()
        per_row = (costs["row"] + costs["pulse"]) / default.log_every
        per_beat = costs["heartbeat"] * self.step_ms / (default.heartbeat_s * 1e3)
        return float(_BEATS * costs["pulse"] + costs["borders"] + costs["wait"] + per_row + per_beat)

    def summary(self) -> dict[str, Any]:
        is_cpu = str(self.told["device"]).startswith("CPU")
        share = self.share
        return {
            **{name: self.told[name] for name in ("device", "world_size", "parameters", "tokens", "block_steps")},
            "pairs": len(self.shares),
            "step_ms": round(self.step_ms, 3),
            "share": round(share.median, 5),
            "share_low": round(share.low, 5),
            "share_high": round(share.high, 5),
            "direct_us": round(self.direct_us, 2),
            "direct_share": round(self.direct_us / self.step_ms / 1e3, 6),
            "parts_us": self.told["direct_us"],
            "target": _TARGET_CPU if is_cpu else _TARGET_GPU,
        }


def measure(
    pairs: int = 40, nproc: int = 1, block_steps: int | None = None, parameters: float = 1e6, tokens: int | None = None
) -> Cost:
    """One run of 2 × pairs blocks."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch:
        settings = {
            "pairs": pairs,
            "block_steps": block_steps,
            "parameters": round(parameters),
            "tokens": tokens,
            "root": str(Path(scratch) / "run"),
        }
        return Cost(run_ranks("paceline.bench.telemetry_blocks", settings, nproc))
