"""The record that a start of a playbook begins with: what an earlier one left there, brought up to date with what is asked for now.

    record = open_record(stage, store, standing)

Nothing that an earlier start found is lost here. What was under way when it was killed has stopped, what judged the others has to judge
them again, and what was done elsewhere says so before anything else is done.
"""

from __future__ import annotations

import os
import sys
import time

from paceline.errors import UsageError
from paceline.launch.record import describe_environment
from paceline.playbook.phase import Phase
from paceline.playbook.stage import Stage
from paceline.playbook.standing import Standing
from paceline.playbook.state import RUNNING, SKIPPED, STOPPED, PhaseRecord, PlayRecord, Store


def open_record(stage: Stage, store: Store, standing: Standing) -> PlayRecord:
    """UsageError where the directory is another playbook's."""
    playbook = stage.playbook
    found = store.load()
    if found is not None and found.name != playbook.name:
        what = f"this directory is of the playbook {found.name}, not of {playbook.name}"
        raise UsageError(what, str(stage.root), "choose another one with --out DIR")
    record = found or PlayRecord(playbook.name, "", "", [], time.time())
    record.about, record.playbook, record.argv = playbook.about, playbook.shown, list(sys.argv)
    record.state, record.reason, record.verdict = RUNNING, "", ""
    record.machine = describe_environment(os.environ)
    known = {phase.name: phase for phase in record.phases}
    record.phases = [_open_phase(name, phase, known.get(name)) for name, phase in playbook.phases.items()]
    for entry in record.phases:
        standing.mark(entry)
        if entry.name in stage.selection.skipped and not entry.has_run:
            entry.state, entry.reason = SKIPPED, stage.selection.skipped[entry.name]
    return record


def _open_phase(name: str, phase: Phase, known: PhaseRecord | None) -> PhaseRecord:
    # What a judge said was of what the others were then.
    is_kept = known is not None and known.kind == phase.kind and not phase.judges
    entry = known if known is not None and is_kept else PhaseRecord(name, phase.kind)
    entry.about, entry.numbers = phase.about, list(phase.numbers)
    if entry.state == RUNNING:
        entry.state, entry.reason = STOPPED, "the playbook was killed while this ran"
    return entry
