"""What every system is measured on: arguments, data, and the line of JSON at the end.

python sasrec_rectools.py --data ml-1m.txt --epochs 2 --threads 2

The data is pmixer's format: `user item` per line, users contiguous, in the order of events. Of each user the last two events are held out.
A position is one target that a loss is computed for; seconds per position compare systems whose epochs are of different sizes.
`other_cores` is how many cores worked for other processes meanwhile: far above 0, the figure says nothing. On two busy cores two threads
were slower than one.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEADS = 1
DROPOUT = 0.2
LEARNING_RATE = 1e-3
HELD_OUT = 2


@dataclass
class Measured:
    """What was trained, epoch by epoch: whole ones, or their first `--max-batches`."""

    seconds: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    other_cores: list[float] = field(default_factory=list)

    def begin(self) -> None:
        self._busy_s, self._own_s, self._began = read_busy_seconds(), time.process_time(), time.perf_counter()

    def end(self, batches: int, samples: int, positions: int) -> None:
        seconds = time.perf_counter() - self._began
        others_s = (read_busy_seconds() - self._busy_s) - (time.process_time() - self._own_s)
        self.seconds.append(seconds)
        self.batches.append(batches)
        self.samples.append(samples)
        self.positions.append(positions)
        self.other_cores.append(max(0.0, others_s / seconds))


def read_busy_seconds() -> float:
    """Seconds that all cores together have worked since the machine started, or were taken from it by its host."""
    user, nice, system, _idle, _waiting, *rest = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def build_parser(losses: tuple[str, ...]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True, help="`user item` per line, in order")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--width", type=int, default=50)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--loss", choices=losses, default="bce")
    parser.add_argument("--max-batches", type=int, help="measure this many batches of each epoch, not all")
    return parser


def limit_threads(threads: int) -> None:
    """Before the first import of torch: OpenMP reads its variables once."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    torch.set_num_threads(threads)


def read_sequences(path: Path) -> dict[int, list[int]]:
    """Every user's items, oldest first, held-out ones included."""
    sequences: dict[int, list[int]] = {}
    for line in path.read_text().splitlines():
        user, item = line.split()[:2]
        sequences.setdefault(int(user), []).append(int(item))
    return sequences


def print_report(
    measured: Measured, samples_per_epoch: int, positions_per_epoch: int, batch: int, **facts: Any
) -> None:
    """The line of JSON. What was measured only in part is scaled to a whole epoch by its samples, and says so.

    Lists have a value per epoch; single figures are those of the fastest one, which was disturbed least.
    """
    is_whole = set(measured.samples) == {samples_per_epoch}
    assert not is_whole or set(measured.positions) == {positions_per_epoch}, "positions are not counted right"
    epoch_seconds = [
        seconds * samples_per_epoch / samples
        for seconds, samples in zip(measured.seconds, measured.samples, strict=True)
    ]
    fastest = min(epoch_seconds)
    found = {
        **facts,
        "samples_per_epoch": samples_per_epoch,
        "batches_per_epoch": -(-samples_per_epoch // batch),
        "positions_per_epoch": positions_per_epoch,
        "epoch_seconds": [round(each, 3) for each in epoch_seconds],
        "epoch_seconds_are": "measured" if is_whole else "extrapolated",
        "measured_batches": measured.batches,
        "measured_seconds": [round(each, 3) for each in measured.seconds],
        "other_cores": [round(each, 2) for each in measured.other_cores],
        "microseconds_per_sample": round(fastest / samples_per_epoch * 1e6, 1),
        "microseconds_per_position": round(fastest / positions_per_epoch * 1e6, 3),
        "positions_per_second": round(positions_per_epoch / fastest),
    }
    print(json.dumps(found), flush=True)
