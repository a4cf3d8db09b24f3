"""The same faults under a plain torchrun: how long until anybody learns of it, and who is named.

run_plain(cell, place, cap_s=120)   -> {"cell": {…}, "noticed_s": None, "rank": None, "what": "nothing for 120 s"}
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from paceline.bench.faults.cell import Cell
from paceline.bench.faults.running import INJECTED, find_began, read_text, small_disk
from paceline.sweep.trial import Slot, Trial

CAP_S = 120.0
_SCRIPT = Path(__file__).with_name("plain.py")
_STEPS = 20_000
_CLEAN_STEPS = 400
_START_S = 180.0
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+)", re.DOTALL)


def run_plain(cell: Cell, place: Path, cap_s: float = CAP_S) -> dict[str, Any]:
    """Until it ends by itself, or the cap after the fault began."""
    place.mkdir(parents=True)
    log, console = place / "fault.jsonl", place / "console.log"
    with small_disk(place / "small", wanted=cell.what.needs == "tmpfs") as room:
        trial = Trial(_command(cell, log, room or place), place, console, f"plain-{os.getpid()}-{cell.name}", Slot(0))
        try:
            while trial.poll() is None and not _is_over(trial, log, cap_s):
                time.sleep(0.25)
            exit_code = trial.poll()
        finally:
            trial.kill_all()
    began, ended = find_began(log), trial.ended or time.time()
    named = _ROOT_CAUSE.search(read_text(console))
    after_s = ended - began["time"] if began is not None else None
    has_failed = exit_code not in (0, None)
    return {
        "cell": cell.to_record(),
        "began": began["time"] if began is not None else None,
        "exit_code": exit_code,
        "noticed_s": round(after_s, 2) if has_failed and after_s is not None else None,
        "rank": int(named[1]) if named and has_failed else None,
        "seconds": round(ended - trial.began, 2),
    }


def _command(cell: Cell, log: Path, room: Path) -> list[str]:
    steps = _STEPS if cell.what.answer is not None else _CLEAN_STEPS
    workers = 1 if cell.what.wish.get("place") == "loader" else 0
    wish = cell.wish(log, room / "filled", fetches_per_step=16)
    words = {"FAULT": wish, "PYTHONPATH": str(INJECTED), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cell.nproc)]
    script = [str(_SCRIPT), str(steps), str(room), str(workers)]
    return ["env", *(f"{name}={value}" for name, value in words.items()), *torchrun, *script]


def _is_over(trial: Trial, log: Path, cap_s: float) -> bool:
    began = find_began(log)
    if began is None:
        return trial.age_s > _START_S + cap_s
    return time.time() - float(began["time"]) > cap_s
