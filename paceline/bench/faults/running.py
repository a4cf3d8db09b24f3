"""A cell under way: its processes on their cores, its small disk where it needs one, looked at now and then, and ended with everything it started.

    running = WatchedRun(cell, Path("matrix/cells/sigstop-001"), slot)
    while (record := running.look()) is None: time.sleep(0.2)

What is started, and when it is over, says `watched.py` (under `paceline train`) or `plainly.py` (under a plain torchrun).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.bench.faults.cell import Cell
from paceline.errors import UsageError
from paceline.files import read_records
from paceline.sweep.trial import Slot, Trial

INJECTED = Path(__file__).with_name("injected")
START_S = 180.0
"""until the fault has begun: start-up and the steps before it"""
IMPOSSIBLE = "impossible"
"""the status of a cell that this machine does not allow"""
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""A cell is the same on any machine: a thread per rank, and no GPU."""


class Running(ABC):
    """A cell that was started; its directory is new."""

    def __init__(self, cell: Cell, place: Path, slot: Slot) -> None:
        self.cell = cell
        self.slot = slot
        self.place = place
        place.mkdir(parents=True)
        self.log, self.console, self.spare = place / "fault.jsonl", place / "console.log", place / "tmp"
        self.spare.mkdir()
        self._disk = contextlib.ExitStack()
        self._refusal = ""
        self._trial: Trial | None = None
        try:
            self.room = self._disk.enter_context(small_disk(place / "small", wanted=cell.what.needs == "tmpfs"))
        except UsageError as error:
            self._refusal = error.problems[0].what
            return
        self.root = self._find_root()
        words = self.environment() | _ENVIRONMENT | {"TMPDIR": str(self.spare)}
        command = ["env", *(f"{name}={value}" for name, value in words.items()), *self.command()]
        try:
            self._trial = Trial(command, self.root, self.console, f"fault-{os.getpid()}-{cell.name}", slot)
        except BaseException:
            self._disk.close()
            raise

    @abstractmethod
    def command(self) -> list[str]:
        """What is started."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """What it is started with."""

    @abstractmethod
    def judge(self, trial: Trial) -> str | None:
        """Why it is over, while it still runs; None: it is not."""

    @abstractmethod
    def report(self, trial: Trial, exit_code: int | None) -> dict[str, Any]:
        """What is known when nothing of it runs any more, and its disk is still there; no exit code: we ended it."""

    def look(self) -> dict[str, Any] | None:
        """Everything that is known of the cell, once it is over."""
        trial = self._trial
        if trial is None:
            known = {"cell": self.cell.to_record(), "status": IMPOSSIBLE, "began": None, "exit_code": None}
            return known | {"notices": [], "pace": [], "tail": [self._refusal], "noticed_s": None, "rank": None}
        status = "ended" if trial.poll() is not None else self.judge(trial)
        if status is None:
            return None
        exit_code = trial.poll()
        left = trial.kill_all()
        ended = trial.ended or time.time()
        began = find_began(self.log)
        common: dict[str, Any] = {
            "cell": self.cell.to_record(),
            "status": status,
            "exit_code": exit_code,
            "began": began["time"] if began is not None else None,
            "injected": began,
            "ended": ended,
            "seconds": round(ended - trial.began, 2),
            "left": left,
            "tail": read_text(self.console).splitlines()[-4:],
        }
        try:
            return common | self.report(trial, exit_code)
        finally:
            self._disk.close()

    def end(self) -> None:
        """For whoever does not want to wait for it."""
        if self._trial is not None:
            self._trial.kill_all()
        self._disk.close()

    def _find_root(self) -> Path:
        """Where the training writes: on the small disk, if there is one."""
        return (self.room or self.place) / "run"

    @property
    def fill(self) -> Path | None:
        return None if self.room is None else self.room / "filled"


def find_began(log: Path) -> dict[str, Any] | None:
    records = read_records(log) if log.exists() else []
    return next((record for record in records if record.get("event") == "began"), None)


def read_text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


@contextlib.contextmanager
def small_disk(place: Path, *, wanted: bool) -> Iterator[Path | None]:
    """A file system of its own, small enough to be filled."""
    if not wanted:
        yield None
        return
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"no small disk could be mounted ({done.stderr.strip()})", str(place), "run this as root")
    try:
        yield place
    finally:
        unmount(place)


def unmount(place: Path) -> None:
    """At once, or, where somebody still looks at it, as soon as he is gone."""
    if subprocess.run(["umount", str(place)], capture_output=True, check=False).returncode:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
