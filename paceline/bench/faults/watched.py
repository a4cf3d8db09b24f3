"""A cell as the product sees it: `paceline train` with the injector in its ranks, until what was expected has been noticed.

WatchedRun(cell, Path("matrix/cells/sigstop-001"), Slot(0)).look()   -> None, … -> {"cell": {…}, "began": 1794767000.1, "notices": […], …}
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import paceline
from paceline.bench.faults.catalogue import Fault
from paceline.bench.faults.notices import Notice, read_notices
from paceline.bench.faults.running import INJECTED, START_S, Running, find_began, read_text
from paceline.errors import UsageError
from paceline.sweep.trial import Trial
from paceline.telemetry.pulse import read_pulses
from paceline.telemetry.reader import read_run

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
_SETTLE_S = 2.0
"""after what was expected has been noticed: whoever else is accused shows until then"""
_CLEAN_S = 600.0
_PULSES_S = 0.5


class WatchedRun(Running):
    """Over when it ended (`ended`), all that is wanted was seen (`noticed`), or it took too long (`capped`, `not begun`)."""

    _seen_at: float | None = None
    _written_at = 0.0

    def command(self) -> list[str]:
        fault = self.cell.what
        words = [f"run.seed={self.cell.seed % 2**31}", f"train.max_steps={fault.length}"]
        given = {word.partition("=")[0] for word in fault.settings}
        base = [word for word in _SETTINGS if word.partition("=")[0] not in given]
        rest = ["--nproc", str(self.cell.nproc), "--out", str(self.root), "--resume", "never"]
        return [sys.executable, "-m", "paceline", "train", "sasrec", *base, *fault.settings, *words, *rest]

    def environment(self) -> dict[str, str]:
        product = str(Path(paceline.__file__).parents[1])  # it may not be installed
        path = os.pathsep.join(filter(None, [str(INJECTED), product, os.environ.get("PYTHONPATH")]))
        return {"FAULT": self.cell.wish(self.log, self.fill), "PYTHONPATH": path}

    def judge(self, trial: Trial) -> str | None:
        fault, began, now = self.cell.what, find_began(self.log), time.time()
        trial.look()
        self._write_pulses(trial)
        if fault.answer is None:
            return "capped" if trial.age_s > _CLEAN_S else None
        if began is None:
            return "not begun" if trial.age_s > START_S else None
        if self._seen_at is None:
            notices = read_notices(self.root, self.spare, "", now)
            if any(is_expected(fault, notice, began["time"]) for notice in notices):
                self._seen_at = time.monotonic()
        elif time.monotonic() - self._seen_at > _SETTLE_S:
            return "noticed"
        steps = (trial.step or 0) - self.cell.step
        is_late = now - began["time"] > fault.cap_s or (fault.cap_steps is not None and steps > fault.cap_steps)
        return "capped" if is_late and self._seen_at is None else None

    def _write_pulses(self, trial: Trial) -> None:
        """What a supervisor could see, in pulses.jsonl: whoever mends it can let it pass once more. Pulses know their last steps."""
        now = time.monotonic()
        if trial.pulses is None or now - self._written_at < _PULSES_S:
            return
        self._written_at = now
        pulses = [pulse.to_record() for pulse in read_pulses(trial.pulses)]
        text = json.dumps({"time": time.time(), "monotonic": now, "pulses": pulses})
        rounded = json.loads(text, parse_float=lambda number: round(float(number), 3))  # half as long
        with open(self.place / "pulses.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(rounded, separators=(",", ":")) + "\n")

    def report(self, trial: Trial, exit_code: int | None) -> dict[str, Any]:
        notices = read_notices(self.root, self.spare, read_text(self.console), trial.ended or time.time())
        return {"notices": [asdict(notice) for notice in notices], "pace": _pace(self.root)}


def is_expected(fault: Fault, notice: Notice, began: float) -> bool:
    return fault.answer is not None and notice.time >= began and notice.kind in fault.answer.kinds


def _pace(root: Path) -> list[tuple[int, float]]:
    """(step, when) of what was logged: which step a moment belongs to."""
    with contextlib.suppress(UsageError, OSError):
        return [(int(row["step"]), float(row["time"])) for row in read_run(root).metrics]
    return []
