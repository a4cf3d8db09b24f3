"""What an earlier run left in the directory, or in shared memory: an owner that lives, orphans, a torn record, pulses of the dead.

Looks, and changes nothing: locks are only touched where their files are.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from pathlib import Path

import psutil

from paceline.errors import OccupiedError, UsageError
from paceline.files import Lock
from paceline.launch.occupied import check_foreign, check_same_run, living_owner
from paceline.launch.origin import Origin
from paceline.launch.orphans import find_orphans
from paceline.preflight.check import Check, from_problems, ok, warn
from paceline.preflight.subject import Subject
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import find_pulse_directories, read_pulses
from paceline.telemetry.run_file import load_run_file

_YOUNG_S = 120.0
"""a directory of pulses that is younger may belong to ranks that are just starting"""
_MOST_NAMED = 10
"""in one command to paste; who runs preflight again hears of the next ones"""


def check_leftovers(subject: Subject) -> list[Check]:
    directory = _directory(subject) if subject.job is not None or subject.config.run.out else []
    return [*directory, _pulses()]


def _directory(subject: Subject) -> list[Check]:
    layout = RunLayout(subject.root)
    name = "earlier run"
    if not layout.root.is_dir():
        return [ok(name, f"none: {layout.root} is new")]
    try:
        check_foreign(layout)
        run = load_run_file(layout.root)
        if _is_held(layout.owner_lock, shared=True):
            raise living_owner(layout)
        if run is None:
            return [ok(name, f"none: {layout.root} is empty")]
        if subject.job is not None and subject.identity is not None:
            check_same_run(layout, run, subject.job.describe_run([], subject.identity), Origin())
    except (OccupiedError, UsageError) as error:
        return from_problems(name, error.problems)
    last = run.attempts[-1] if run.attempts else None
    checks = [ok(name, f"this one, {_how(run.state, run.reason)}: a start goes on with it", attempts=len(run.attempts))]
    if last is not None and _is_held(layout.workers_lock, shared=False):
        found = find_orphans(layout, last.attempt)
        who = f"pid {', '.join(str(process.pid) for process in found)}" if found else f"see fuser {layout.workers_lock}"
        what = f"worker processes of attempt {last.attempt} still live, without their launcher ({who})"
        pids = [process.pid for process in found]
        checks.append(warn("orphans", what, "the next start ends them after 5 s", pids=pids))
    return checks


def _how(state: str, reason: str) -> str:
    if state == "running":
        return "whose launcher was killed"
    return f"{state} ({reason})" if reason and reason != state else state


def _is_held(path: Path, *, shared: bool) -> bool:
    """Whether somebody holds the lock; a lock without a file is held by nobody."""
    if not path.exists():
        return False
    lock = Lock(path)
    try:
        return not lock.acquire(shared=shared)
    except OSError:
        return False
    finally:
        lock.release()


def _pulses() -> Check:
    """Pulses whose ranks are all dead: their launcher was killed, and nobody started that run again."""
    dead = []
    for directory in find_pulse_directories():
        with contextlib.suppress(OSError):
            is_young = time.time() - directory.stat().st_mtime < _YOUNG_S
            is_ours = directory.stat().st_uid == os.getuid()
            if is_ours and not is_young and not any(psutil.pid_exists(pulse.pid) for pulse in read_pulses(directory)):
                dead.append(str(directory))
    if dead:
        what = f"{len(dead)} director{'y' if len(dead) == 1 else 'ies'} of runs that died"
        what += "; a run that is started again removes its own"
        return warn("pulses", what, shlex.join(["rm", "-r", *dead[:_MOST_NAMED]]), directories=dead)
    return ok("pulses", "none of runs that died")
