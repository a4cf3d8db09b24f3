"""How long a rank waits for the others, into its pulse; and with telemetry.timing_ranks=all its own times, one row per window, in a
file of its own: timing/rank_00001.csv.

No rank asks another for them. The wait is what tells a slow rank from those that wait for it: all of them take equally long over a
step, and the slow one waits least.
"""

from __future__ import annotations

import time

from paceline.engine.context import Context
from paceline.engine.losses import Losses
from paceline.engine.strategies.base import Strategy
from paceline.engine.timing import WindowTimes
from paceline.telemetry.tables import TIMING_COLUMNS, Table


class RankTimes:
    """Reads the waits of a run of several ranks; writes the table where it is asked for."""

    def __init__(self, context: Context, strategy: Strategy, losses: Losses) -> None:
        config, ranks = context.config.telemetry, context.ranks
        self._attempt = context.attempt
        self._strategy = strategy
        self._losses = losses
        self._pulse = context.pulse
        self._waits_ms: list[float] = []
        self._last = -1
        self._unread = 0
        """steps since the last reading"""
        # On a GPU each measured step makes the host wait for the device: one per window.
        self._every = config.log_every if ranks.device.type == "cuda" else 1
        self._is_known = ranks.world_size > 1 and strategy.watch_waits(self._every)
        if self._is_known and ranks.device.type == "cpu":  # a host that waits for its GPU is no news
            self._pulse.tell_own()
        self._table: Table | None = None
        if config.timing_ranks == "rank0" or ranks.world_size == 1:
            return
        self._table = Table(context.layout.timing(ranks.rank), TIMING_COLUMNS)
        how = f"waits are read every {self._every} steps"
        if not self._is_known:
            how = "this strategy does not tell how long a rank waits"
        context.events.choice("telemetry.timing_ranks", "all", "all", f"a table per rank in timing/; {how}")

    def see_step(self) -> None:
        """After each step."""
        self._unread += 1
        if not self._is_known or self._unread < self._every:
            return
        self._unread = 0
        reading = self._strategy.read_wait()
        if reading is not None and reading[0] != self._last:
            self._last = reading[0]
            wait_ms = reading[1] + self._losses.read_wait_ms()
            self._pulse.wait(wait_ms)
            if self._table is not None:
                self._waits_ms.append(wait_ms)

    def write(self, step: int, times: WindowTimes, *, is_untimed: bool) -> None:
        if self._table is None:
            return
        waits, self._waits_ms = self._waits_ms, []
        row: dict[str, float | None] = {
            "attempt": self._attempt,
            "step": step,
            "window_steps": times.steps,
            "time": time.time(),
        }
        if not is_untimed:
            wait_ms = sum(waits) / len(waits) if waits else None
            row |= times.columns() | {"wait_ms": wait_ms, "wait_steps": len(waits)}
        self._table.write(row)

    def close(self) -> None:
        if self._table is not None:
            self._table.close()
