"""Runs one cell: `paceline train` with the injector in its ranks, watched until something is noticed, then ended with everything it started.

run_cell(cell, Path("matrix/cells"))   -> {"cell": {…}, "began": 1794767000.1, "notices": […], "status": "run", …}
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.bench.faults.catalogue import Fault
from paceline.bench.faults.cell import Cell
from paceline.bench.faults.notices import Notice, read_notices
from paceline.errors import UsageError
from paceline.files import read_records
from paceline.sweep.trial import Slot, Trial
from paceline.telemetry.reader import read_run

INJECTED = Path(__file__).with_name("injected")
_SETTINGS = (
    "launch.gpus=[]",
    "data.users=1500",
    "data.items=300",
    "data.events_per_user=20",
    "data.max_length=24",
    "model.width=32",
    "train.global_batch=96",
    "train.epochs=null",
    "train.schedule.kind=constant",
    "telemetry.log_every=5",
    "telemetry.tensorboard=false",
    "evaluate.every_epochs=null",
    "evaluate.every_steps=40",
    "evaluate.max_samples=200",
    "checkpoint.every_epochs=null",
    "checkpoint.every_steps=50",
)
"""Steps of 20 to 50 ms on 2 to 4 ranks that share two cores, with evaluations and checkpoints now and then."""
_START_S = 180.0
"""until the fault has begun: start-up and the steps before it"""
_SETTLE_S = 2.0
"""after what was expected has been noticed: whoever else is accused shows until then"""
_CLEAN_S = 420.0


def run_cell(cell: Cell, place: Path) -> dict[str, Any]:
    """Everything that is known of the cell afterwards; its directory is new."""
    fault, root = cell.what, place / "run"
    place.mkdir(parents=True)
    log, console, spare = place / "fault.jsonl", place / "console.log", place / "tmp"
    spare.mkdir()
    with small_disk(place / "small", wanted=fault.needs == "tmpfs") as room:
        root = root if room is None else room / "run"
        fill = None if room is None else room / "filled"
        words = {"FAULT": cell.wish(log, fill), "PYTHONPATH": _path(), "TMPDIR": str(spare)}
        command = ["env", *(f"{name}={value}" for name, value in words.items()), *_command(cell, root)]
        trial = Trial(command, root, console, f"fault-{os.getpid()}-{cell.name}", Slot(0))
        try:
            status = _follow(trial, cell, log, spare)
        finally:
            left = trial.kill_all()
        ended = trial.ended or time.time()
        notices = read_notices(root, spare, read_text(console), ended)
        began = find_began(log)
        return {
            "cell": cell.to_record(),
            "status": status,
            "exit_code": trial.poll(),
            "began": began.get("time") if began else None,
            "injected": began,
            "ended": ended,
            "seconds": round(ended - trial.began, 2),
            "notices": [asdict(notice) for notice in notices],
            "pace": _pace(root),
            "left": left,
            "tail": read_text(console).splitlines()[-4:],
        }


def _command(cell: Cell, root: Path) -> list[str]:
    words = [f"run.seed={cell.seed % 2**31}", f"train.max_steps={cell.what.length}"]
    given = {word.partition("=")[0] for word in cell.what.settings}
    base = [word for word in _SETTINGS if word.partition("=")[0] not in given]
    rest = ["--nproc", str(cell.nproc), "--out", str(root), "--resume", "never"]
    return [sys.executable, "-m", "paceline", "train", "sasrec", *base, *cell.what.settings, *words, *rest]


def _path() -> str:
    return os.pathsep.join(filter(None, [str(INJECTED), os.environ.get("PYTHONPATH")]))


def _follow(trial: Trial, cell: Cell, log: Path, spare: Path) -> str:
    """Until it ended (`ended`), all that is wanted was seen (`noticed`), or it took too long (`capped`, `not begun`)."""
    fault, seen_at = cell.what, None
    limit_s = _CLEAN_S if fault.answer is None else _START_S
    while trial.poll() is None:
        time.sleep(0.25)
        trial.look()
        began = find_began(log)
        now = time.time()
        if fault.answer is None or began is None:
            if trial.age_s > limit_s:
                return "capped" if fault.answer is None else "not begun"
            continue
        notices = read_notices(trial.root, spare, "", now)
        if seen_at is None and any(is_expected(fault, notice, began["time"]) for notice in notices):
            seen_at = time.monotonic()
        if seen_at is not None and time.monotonic() - seen_at > _SETTLE_S:
            return "noticed"
        steps = (trial.step or 0) - cell.step
        if now - began["time"] > fault.cap_s or (fault.cap_steps is not None and steps > fault.cap_steps):
            return "capped"
    return "ended"


def is_expected(fault: Fault, notice: Notice, began: float) -> bool:
    return fault.answer is not None and notice.time >= began and notice.kind in fault.answer.kinds


def find_began(log: Path) -> dict[str, Any] | None:
    records = read_records(log) if log.exists() else []
    return next((record for record in records if record.get("event") == "began"), None)


def _pace(root: Path) -> list[tuple[int, float]]:
    """(step, when) of what was logged: which step a moment belongs to."""
    with contextlib.suppress(UsageError, OSError):
        return [(int(row["step"]), float(row["time"])) for row in read_run(root).metrics]
    return []


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
        subprocess.run(["umount", str(place)], check=True)
