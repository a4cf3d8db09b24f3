"""What a killed driver left: trials that the ledger has as running, and processes of theirs that still live.

take_over(sweep, ledger, journal)      # all of them are interrupted then, and what they cost is written down
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from paceline.launch.marked import describe_left, end_marked
from paceline.sweep.journal import Journal
from paceline.sweep.ledger import Ledger, Row
from paceline.sweep.measured import Measured
from paceline.sweep.outcome import Sweep
from paceline.sweep.trial import MARK, clear_pulses


def mark_of(ledger: Ledger, row: Row) -> str:
    """By which the processes of a trial are found."""
    return f"{ledger.id}-{row.id}"


def take_over(sweep: Sweep, ledger: Ledger, journal: Journal) -> None:
    left = ledger.running()
    if not left:
        return
    stuck = end_marked(MARK, {mark_of(ledger, row) for row in left})
    num_gpus = {case.name: case.placement.num_gpus for case in sweep.matrix.cases}
    for row in left:
        root, devices = sweep.root / row.directory, max(1, num_gpus.get(row.case, 1))
        ended = last_sign(root, row.began)
        clear_pulses(root)
        duration_s = ended - row.began
        measured = Measured("interrupted", duration_s=duration_s, device_s=duration_s * devices, devices=devices)
        ledger.finish(row.id, "interrupted", "its driver was killed", measured.to_record(), ended)
        journal.say(f"trial {row.id} ({row.case}, round {row.round}) was interrupted; it is run again")
    if stuck:
        journal.say(f"warning: {describe_left(stuck)}")


def last_sign(root: Path, began: float) -> float:
    """When a trial that nobody watched any more last wrote something, its launcher included."""
    times = [began]
    for path in (root.with_name(f"{root.name}.log"), *root.rglob("*")):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)
