"""The matrix: cells side by side, each recorded when it is done, so that the same command goes on wherever it was killed.

    for record in Matrix(Path("runs/faults"), Wanted(runs=5, clean_runs=6)).run(slots, is_over=lambda: False): …

OUT/matrix.json holds the seed, OUT/ledger.jsonl a line per cell, OUT/cells/ the directories of those that were not understood. What
was seen of other code counts for nothing, and is said.
"""

from __future__ import annotations

import random
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paceline
from paceline.bench.faults.catalogue import CATALOGUE
from paceline.bench.faults.cell import Cell, draw_cell
from paceline.bench.faults.running import Running, unmount
from paceline.bench.faults.score import score
from paceline.bench.faults.watched import WatchedRun
from paceline.config.nearest import nearest
from paceline.errors import OccupiedError, UsageError
from paceline.files import LineWriter, Lock, read_json, read_records, sha256_of, write_json
from paceline.sweep.fingerprint import digest_of
from paceline.sweep.trial import Slot

VERSION = 1
_NO_PART = ("bench", "playbook", "reports", "triage")
"""Rooms that cannot change what is noticed, but for this one. All others count: what is forgotten here costs cells, not their truth."""

_LOOK_S = 0.2

Start = Callable[[Cell, Path, Slot], Running]


@dataclass(frozen=True)
class Wanted:
    """Which cells."""

    runs: int
    """of each fault"""
    clean_runs: int
    """of each kind of run without one"""
    only: Sequence[str] = ()
    seed: int | None = None
    """None: the directory's own, or any"""


class Matrix:
    """One directory of cells."""

    def __init__(self, out: Path, wanted: Wanted, start: Start = WatchedRun, *, keep: bool = False) -> None:
        """`keep`: every cell's directory stays, not only those of which something is to be learned."""
        self.out = out = out.absolute()  # TMPDIR of the cells is in there
        self._start = start
        self._keep = keep
        self._wanted = wanted
        self._names = choose(wanted.only)
        self._code = code_digest()
        out.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(out / ".lock")
        if not self._lock.acquire():
            raise OccupiedError(
                "another matrix runs in this directory", str(out), "wait for it, or choose another --out"
            )
        self.seed = self._settle_seed(wanted.seed)
        self.ledger = out / "ledger.jsonl"
        known = read_records(self.ledger) if self.ledger.exists() else []
        mine = [record for record in known if record.get("seed") == self.seed]
        self._done = {_name(record): record for record in mine if record.get("code") == self._code}
        self.num_foreign = len(mine) - sum(record.get("code") == self._code for record in mine)
        """records of other code"""

    @property
    def cells(self) -> list[Cell]:
        """All that are asked for, round by round. In each the long ones begin first, and the last rounds have some of everything:
        so nobody waits for one long cell at the end."""
        cells = []
        most = max(self._wanted.runs, self._wanted.clean_runs)
        for number in range(most):
            numbers = {name: number + 1 + self._runs_of(name) - most for name in self._names}
            drawn = [draw_cell(name, own, self.seed) for name, own in numbers.items() if own > 0]
            random.Random(f"{self.seed} {number}").shuffle(drawn)
            cells += sorted(drawn, key=lambda cell: -cell.what.seconds)
        return cells

    def _runs_of(self, name: str) -> int:
        return self._wanted.clean_runs if CATALOGUE[name].answer is None else self._wanted.runs

    def missing(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.name not in self._done]

    def records(self) -> list[dict[str, Any]]:
        """Of the cells that are asked for, those that are done."""
        return [self._done[cell.name] for cell in self.cells if cell.name in self._done]

    def wrong(self) -> dict[str, dict[str, Any]]:
        """Cell -> record of those that were not understood."""
        return {_name(record): record for record in self.records() if not score(record).is_right}

    def run(self, slots: Sequence[Slot], is_over: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """Runs what is missing, a cell in each slot; each record when it is on the disk. Cells that are under way when it is over
        are ended, and run again the next time."""
        writer, missing, free = LineWriter(self.ledger), self.missing(), list(slots)
        running: list[Running] = []
        try:
            while (missing or running) and not is_over():
                while missing and free:
                    cell = missing.pop(0)
                    place = self.out / "cells" / cell.name
                    clear(place)
                    running.append(self._start(cell, place, free.pop(0)))
                time.sleep(_LOOK_S)
                for each in list(running):
                    found = each.look()
                    if found is None:
                        continue
                    running.remove(each)
                    free.append(each.slot)
                    record = found | {"seed": self.seed, "code": self._code}
                    writer.write_record(record)
                    self._done[each.cell.name] = record
                    if not self._keep and score(record).is_right:
                        clear(each.place)
                    yield record
        finally:
            for each in running:
                each.end()
                clear(each.place)
            writer.close()

    def close(self) -> None:
        self._lock.release()

    def _settle_seed(self, seed: int | None) -> int:
        """The directory's own, or the one that is asked for, or any."""
        path = self.out / "matrix.json"
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
    """The faults that words stand for: a name, or the beginning of several (`slow`, `clean_`)."""
    chosen = []
    for word in only:
        begin = f"{word.rstrip('_')}_"
        found = [word] if word in CATALOGUE else [name for name in CATALOGUE if name.startswith(begin)]
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
        unmount(small)
    shutil.rmtree(place, ignore_errors=True)


def build_slots(jobs: int, cores_each: int, cores: Sequence[int]) -> list[Slot]:
    """Each cell on as many cores as any other, whatever runs beside it; more jobs than there are cores share some."""
    shares = [[cores[(job * cores_each + k) % len(cores)] for k in range(cores_each)] for job in range(jobs)]
    return [Slot(number, cores=frozenset(share)) for number, share in enumerate(shares)]


def code_digest() -> str:
    package = Path(paceline.__file__).parent
    return digest_of([(name, sha256_of(package / name)) for name in list_code(package)])[:16]


def list_code(package: Path) -> list[str]:
    """The files, from there, of whatever takes part in a cell."""
    files = [path.relative_to(package) for path in package.rglob("*") if path.suffix in (".py", ".yaml")]
    taking = [path for path in files if path.parts[0] not in _NO_PART or path.parts[:2] == ("bench", "faults")]
    return sorted(path.as_posix() for path in taking)


def _name(record: dict[str, Any]) -> str:
    return f"{record['cell']['fault']}-{record['cell']['number']:03d}"
