"""Steps of real runs, rank by rank, given back as pulses: tests/data/steps, 2 to 4 ranks on two cores under a load of 8 to 10.

Times are ms; `data` to `optimizer` by the wall, `wait` part of `backward`. A name says who was slowed down by 10 % of a step, and where.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path

from paceline.diagnose.sight import RankSight, Sight
from paceline.telemetry.pulse import Pulse

STEPS = Path(__file__).parents[1] / "data" / "steps"
_PHASES = ("data", "forward", "backward", "optimizer")
_OWN = ("idle_data", "idle_forward", "idle_backward", "queued")
_LOOK_S = 0.5


def see_recorded(name: str, *, tells_own: bool = True) -> Iterator[tuple[int, Sight]]:
    """(step, sight), two a second."""
    with open(STEPS / f"{name}.csv", encoding="utf-8") as file:
        rows = [{column: float(value) for column, value in row.items()} for row in csv.DictReader(file)]
    by_rank = {int(rank): list(own) for rank, own in itertools.groupby(sorted(rows, key=_rank), key=_rank)}
    now_s = looked_s = 0.0
    for step in range(1, len(by_rank[0]) + 1):
        now_s += max(sum(own[step - 1][phase] for phase in _PHASES) for own in by_rank.values()) / 1000
        if now_s - looked_s >= _LOOK_S:
            looked_s = now_s
            seen = [RankSight(rank, "a", _pulse(rank, own[:step], tells_own), None) for rank, own in by_rank.items()]
            yield step, Sight(now_s, now_s, 1, len(by_rank), tuple(seen))


def _rank(row: dict[str, float]) -> float:
    return row["rank"]


def _pulse(rank: int, done: list[dict[str, float]], tells_own: bool) -> Pulse:
    step, recent = len(done), done[-64:]
    spent_s = {phase: sum(row[phase] for row in done) / 1000 for phase in _PHASES}
    waits = tuple(row["wait"] for row in recent)
    own = tuple(row[column] for row in recent for column in _OWN) if tells_own else ()
    waited_ms = sum(row["wait"] for row in done)
    return Pulse(rank, 1, 1, step + 1, "data", 0.0, 0, 0, step, waited_ms, spent_s, step, waits, own)
