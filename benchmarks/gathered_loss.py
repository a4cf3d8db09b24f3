"""What the loss of the whole step costs: csa trained with the rows of all ranks gathered, and with this rank's rows alone.

torchrun --nproc-per-node 2 benchmarks/gathered_loss.py csa train.max_steps=130 --out /tmp/gathered

Both in one run, in turn by blocks of five steps, so that what else the machine does falls on both alike. Where rows are not gathered, those
of the other ranks are zero: the loss means nothing then, and nothing has travelled for it. Prints the median step of both, and the median of
the ratios of neighbouring blocks. `telemetry.log_every=1` is set here: the time of every single step is needed.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

import torch

from paceline.engine.ranks import Ranks
from paceline.engine.row_gather import RowGather
from paceline.telemetry.tables import read_table
from paceline.worker.__main__ import main

BLOCK = 5


class Alternating(RowGather):
    """Gathers in every other block of steps."""

    calls = 0

    def run(self, rows, sizes):
        kind = type(self)
        kind.calls += 1
        if gathers(kind.calls):
            return super().run(rows, sizes)
        rank = self._rank
        return torch.cat(
            [rows if other == rank else rows.new_zeros(size, *rows.shape[1:]) for other, size in enumerate(sizes)]
        )

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ranks)
        self._rank = ranks.rank


def gathers(step: int) -> bool:
    return (step - 1) // BLOCK % 2 == 0


def report(run: Path) -> None:
    """Each block beside its neighbour: what the machine does besides changes more slowly than blocks do."""
    blocks: dict[int, list[float]] = {}
    for row in read_table(run / "metrics.csv"):
        # The first steps of the run, and of each block, are left out.
        if row["step_ms"] is not None and row["step"] > 4 * BLOCK and (row["step"] - 1) % BLOCK:
            blocks.setdefault((row["step"] - 1) // BLOCK, []).append(row["step_ms"])
    pairs = [
        (statistics.median(blocks[number]), statistics.median(blocks[number + 1]))
        for number in sorted(blocks)
        if number % 2 == 0 and number + 1 in blocks
    ]
    for name, times in zip(("gathered", "alone"), zip(*pairs, strict=True), strict=True):
        print(f"{name:10} {statistics.median(times):8.2f} ms a step")
    low, middle, high = statistics.quantiles([gathered / alone - 1 for gathered, alone in pairs], n=4)
    print(
        f"gathering costs {middle:+.1%} of a step: half of {len(pairs)} pairs of blocks within {low:+.1%} to {high:+.1%}"
    )


if __name__ == "__main__":
    import paceline.engine.contrast as contrast

    contrast.RowGather = Alternating
    arguments = [*sys.argv[1:], "telemetry.log_every=1"]
    told = os.dup(1)  # a rank's own output goes to its log file
    code = main(arguments)
    if code == 0 and os.environ["RANK"] == "0":
        os.dup2(told, 1)
        report(Path(arguments[arguments.index("--out") + 1]))
        sys.stdout.flush()
    os._exit(code)
