"""One cell of the matrix: a fault, how many ranks, which of them suffers, in which step; drawn from a seed, so that anybody draws the same.

draw_cell("sigstop", number=2, seed=7)   -> Cell(fault="sigstop", number=2, nproc=3, rank=1, step=41, seed=7, …)
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.bench.faults.catalogue import CATALOGUE, Fault


@dataclass(frozen=True)
class Cell:
    """What is to be run."""

    fault: str
    number: int
    """which of the cells of this fault, from 1"""
    seed: int
    nproc: int
    rank: int
    step: int
    delay_s: float
    """of a signal, into the step"""

    @property
    def name(self) -> str:
        return f"{self.fault}-{self.number:03d}"

    @property
    def what(self) -> Fault:
        return CATALOGUE[self.fault]

    def wish(self, log: Path, fill: Path | None, fetches_per_step: int = 1) -> str:
        """The injector's environment variable."""
        wish: dict[str, Any] = {"rank": self.rank, "step": self.step, "delay_s": self.delay_s, "log": str(log)}
        wish["fetches_per_step"] = fetches_per_step
        if fill is not None:
            wish["fill"] = str(fill)
        return json.dumps(wish | dict(self.what.wish))

    def to_record(self) -> dict[str, Any]:
        return asdict(self)


def draw_cell(fault: str, number: int, seed: int) -> Cell:
    """The same for the same words, whatever else is drawn."""
    what = CATALOGUE[fault]
    chance = random.Random(f"{seed} {fault} {number}")
    nproc = chance.randint(what.least_ranks, what.most_ranks)
    return Cell(
        fault=fault,
        number=number,
        seed=seed,
        nproc=nproc,
        rank=what.only_rank if what.only_rank is not None else chance.randrange(nproc),
        step=chance.randint(*what.steps),
        delay_s=round(chance.uniform(0.0, 0.05), 4),
    )
