"""The same faults under a plain torchrun: how long until anybody learns of it, and who is named.

PlainRun(cell, place, slot).look()   -> None, … -> {"cell": {…}, "noticed_s": None, "rank": None, …}: nothing for 120 s
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

from paceline.bench.faults.running import INJECTED, START_S, Running, find_began, read_text
from paceline.sweep.trial import Trial

CAP_S = 120.0
"""after the fault began"""
_SCRIPT = Path(__file__).with_name("plain.py")
_STEPS = 20_000
_CLEAN_STEPS = 400
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+)", re.DOTALL)


class PlainRun(Running):
    """Over when it ends by itself, or at the cap."""

    def command(self) -> list[str]:
        self.root.mkdir(exist_ok=True)
        steps = _STEPS if self.cell.what.answer is not None else _CLEAN_STEPS
        workers = 1 if self.cell.what.wish.get("place") == "loader" else 0
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        script = [str(_SCRIPT), str(steps), str(self.root), str(workers)]
        return [*torchrun, "--nproc-per-node", str(self.cell.nproc), *script]

    def environment(self) -> dict[str, str]:
        return {"FAULT": self.cell.wish(self.log, self.fill, fetches_per_step=16), "PYTHONPATH": str(INJECTED)}

    def judge(self, trial: Trial) -> str | None:
        began = find_began(self.log)
        if began is None or self.cell.what.answer is None:
            return "not begun" if trial.age_s > START_S + CAP_S else None
        return "capped" if time.time() - float(began["time"]) > CAP_S else None

    def report(self, trial: Trial, exit_code: int | None) -> dict[str, Any]:
        began, has_failed = find_began(self.log), exit_code not in (0, None)
        named = _ROOT_CAUSE.search(read_text(self.console))
        after_s = (trial.ended or time.time()) - began["time"] if began is not None else None
        return {
            "noticed_s": round(after_s, 2) if has_failed and after_s is not None else None,
            "rank": int(named[1]) if named and has_failed else None,
        }
