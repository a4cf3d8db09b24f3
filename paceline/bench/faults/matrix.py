"""The matrix: cells in turn, each recorded when it is done, so that the same command goes on wherever it was killed.

    for record in Matrix(Path("runs/faults"), seed=None, runs=5, only=()).run(): …

OUT/matrix.json holds the seed, OUT/ledger.jsonl a line per cell, OUT/cells/ the directories of those that were not understood. What
was seen of other code counts for nothing, and is said.
"""

from __future__ import annotations

import random
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import paceline
from paceline.bench.faults.catalogue import CATALOGUE
from paceline.bench.faults.cell import Cell, draw_cell
from paceline.bench.faults.running import run_cell
from paceline.bench.faults.score import score
from paceline.config.nearest import nearest
from paceline.errors import OccupiedError, UsageError
from paceline.files import LineWriter, Lock, read_json, read_records, sha256_of, write_json
from paceline.sweep.fingerprint import digest_of

VERSION = 1
_ROOMS = ("bench/faults", "config", "diagnose", "engine", "launch", "supervise", "telemetry", "worker")
"""What can change what is noticed."""

Run = Callable[[Cell, Path], dict[str, Any]]


class Matrix:
    """One directory of cells."""

    def __init__(
        self, out: Path, seed: int | None, runs: int, only: Sequence[str], run: Run = run_cell, *, keep: bool = False
    ) -> None:
        """`keep`: every cell's directory stays, not only those of which something is to be learned."""
        self._out = out
        self._run = run
        self._keep = keep
        self._names = choose(only)
        self._runs = runs
        self._code = code_digest()
        out.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(out / ".lock")
        if not self._lock.acquire():
            raise OccupiedError(
                "another matrix runs in this directory", str(out), "wait for it, or choose another --out"
            )
        self.seed = self._settle_seed(seed)
        self.ledger = out / "ledger.jsonl"
        known = read_records(self.ledger) if self.ledger.exists() else []
        mine = [record for record in known if record.get("seed") == self.seed]
        self._done = {_name(record): record for record in mine if record.get("code") == self._code}
        self.num_foreign = len(mine) - sum(record.get("code") == self._code for record in mine)
        """records of other code"""

    @property
    def cells(self) -> list[Cell]:
        """All that are asked for: a round of every fault, then the next one, each in an order of its own."""
        cells = []
        for number in range(1, self._runs + 1):
            drawn = [draw_cell(name, number, self.seed) for name in self._names]
            random.Random(f"{self.seed} {number}").shuffle(drawn)
            cells += drawn
        return cells

    def missing(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.name not in self._done]

    def records(self) -> list[dict[str, Any]]:
        """Of the cells that are asked for, those that are done."""
        return [self._done[cell.name] for cell in self.cells if cell.name in self._done]

    def run(self) -> Iterator[dict[str, Any]]:
        """Runs what is missing; each record when it is on the disk."""
        writer = LineWriter(self.ledger)
        try:
            for cell in self.missing():
                place = self._out / "cells" / cell.name
                clear(place)
                record = self._run(cell, place) | {"seed": self.seed, "code": self._code}
                writer.write_record(record)
                self._done[cell.name] = record
                if not self._keep and score(record).is_right:
                    clear(place)
                yield record
        finally:
            writer.close()

    def close(self) -> None:
        self._lock.release()

    def _settle_seed(self, seed: int | None) -> int:
        """The directory's own, or the one that is asked for, or any."""
        path = self._out / "matrix.json"
        if path.exists():
            known = int(read_json(path)["seed"])
            if seed not in (None, known):
                what = f"--seed {seed}, but this matrix was begun with {known}"
                raise UsageError(what, str(path), "leave --seed out to go on, or choose another --out")
            return known
        chosen = secrets.randbelow(10**6) if seed is None else seed
        write_json(path, {"v": VERSION, "seed": chosen})
        return chosen


def choose(only: Sequence[str]) -> list[str]:
    """The faults that words stand for: a name, or the beginning of several (`slow`, `clean`)."""
    chosen = []
    for word in only:
        found = [word] if word in CATALOGUE else [name for name in CATALOGUE if name.startswith(f"{word}_")]
        if not found:
            close = nearest(word, CATALOGUE)
            do = f"did you mean {close}?" if close else f"one of {', '.join(CATALOGUE)}"
            raise UsageError(f"there is no fault {word!r}", "flag --only", do)
        chosen += [name for name in found if name not in chosen]
    return chosen or list(CATALOGUE)


def clear(place: Path) -> None:
    """What an earlier run of the cell left, a small disk that is still mounted included."""
    small = place / "small"
    if small.is_mount():
        subprocess.run(["umount", str(small)], check=True)
    shutil.rmtree(place, ignore_errors=True)


def code_digest() -> str:
    package = Path(paceline.__file__).parent
    files = sorted(path for room in _ROOMS for path in (package / room).rglob("*") if path.suffix in (".py", ".yaml"))
    return digest_of([(path.relative_to(package).as_posix(), sha256_of(path)) for path in files])[:16]


def _name(record: dict[str, Any]) -> str:
    return f"{record['cell']['fault']}-{record['cell']['number']:03d}"
