"""One run, one owner: taking a run directory for a new attempt, and giving it back with how the attempt ended.

    claim = claim_run(root, description, world_size=2)         # or AlreadyFinished, or OccupiedError
    ...                                                        # workers write below claim.layout as attempt claim.attempt
    claim.finish("finished", "finished", step=400, exit_code=0)
    again = claim.begin_again(description)                     # the next attempt, without letting go of the run

Whoever claims holds the owner lock until it ends; workers share the workers lock. Under a foreign launcher rank 0 claims before any
rank takes the workers lock. An attempt begins under the attempt lock, under which workers also make a checkpoint visible: one that
outlived its attempt sees that it is over. Nothing of an earlier attempt is deleted.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paceline
from paceline.config.changes import Change, changed_settings, load_settings
from paceline.files import Lock, storage_errors, write_json, write_text
from paceline.launch.description import RunDescription
from paceline.launch.occupied import check_foreign, check_same_run, living_owner
from paceline.launch.origin import Origin
from paceline.launch.orphans import end_orphans
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.ownership import close_earlier, save_fenced
from paceline.telemetry.pulse import create_pulse_directory, remove_pulse_directory
from paceline.telemetry.run_file import Attempt, AttemptHost, RunFile, load_run_file
from paceline.telemetry.software import describe_software

_ORPHAN_WAIT_S = 5.0


@dataclass
class Claim:
    """A run directory held for one attempt, by this process."""

    layout: RunLayout
    run: RunFile
    attempt: int
    pulses: Path
    notes: list[str]
    """what a person should know about how the claim came about"""
    _lock: Lock = field(repr=False)

    def finish(self, state: str, reason: str, step: int | None, exit_code: int) -> None:
        """Writes how the attempt ended, and takes its pulses away."""
        attempt = self.run.attempts[-1]
        attempt.state, attempt.reason, attempt.step, attempt.exit_code = state, reason, step, exit_code
        attempt.ended = time.time()
        self.run.state, self.run.reason = state, reason
        remove_pulse_directory(self.pulses)
        with storage_errors(self.layout.root):
            self.run.save(self.layout)

    def begin_again(self, description: RunDescription, hosts: Sequence[AttemptHost] | None = None) -> Claim:
        """The next attempt of the same run by the same owner, on the same hosts unless said; the one before must be finished."""
        last = self.run.attempts[-1]
        spent_s = last.spent_s + time.time() - last.started
        size = sum(host.num_ranks for host in hosts) if hosts is not None else last.world_size
        with storage_errors(self.layout.root):
            orphans = end_orphans(self.layout, self.run, _ORPHAN_WAIT_S)
            return _begin_attempt(
                self.layout, self.run, description, size, [], self._lock, orphans, spent_s, hosts or ()
            )

    def release(self) -> None:
        self._lock.release()


@dataclass(frozen=True)
class AlreadyFinished:
    """There is nothing to do: this run reached its end in an earlier attempt."""

    layout: RunLayout
    run: RunFile
    changed: list[str]
    """`key: old → new` of settings that differ from the finished run's without making it another run"""


@dataclass
class Reservation:
    """A run directory that is held, and in which no attempt has begun yet; begin one, or release it."""

    layout: RunLayout
    _run: RunFile | None
    _description: RunDescription
    _origin: Origin
    _changed: list[Change]
    _lock: Lock = field(repr=False)

    def begin(
        self, world_size: int, hosts: Sequence[AttemptHost] = (), *, orphan_wait_s: float = _ORPHAN_WAIT_S
    ) -> Claim:
        """The first attempt of this owner; `hosts` where there are several."""
        run, notes = self._run, list[str]()
        try:
            with storage_errors(self.layout.root):
                if run is None:
                    run = _new_run(self._description, self._origin)
                else:
                    notes = [*end_orphans(self.layout, run, wait_s=orphan_wait_s), *close_earlier(run)]
                return _begin_attempt(
                    self.layout, run, self._description, world_size, self._changed, self._lock, notes, hosts=hosts
                )
        except BaseException:
            self._lock.release()
            raise

    def release(self) -> None:
        self._lock.release()


def claim_run(
    root: Path,
    description: RunDescription,
    world_size: int,
    origin: Origin | None = None,
    *,
    orphan_wait_s: float = _ORPHAN_WAIT_S,
) -> Claim | AlreadyFinished:
    """Takes `root` for a new attempt of the described run, or says why not; see the module's docstring."""
    reserved = reserve_run(root, description, origin)
    return (
        reserved if isinstance(reserved, AlreadyFinished) else reserved.begin(world_size, orphan_wait_s=orphan_wait_s)
    )


def reserve_run(root: Path, description: RunDescription, origin: Origin | None = None) -> Reservation | AlreadyFinished:
    """Holds `root` for the described run, whose size may not be known yet, or says why not."""
    origin = origin or Origin()
    layout = RunLayout(root.absolute())
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        check_foreign(layout)
        lock = Lock(layout.owner_lock)
        if not lock.acquire_within(0.3):  # `paceline stop` looks at the lock by touching it
            lock.release()
            raise living_owner(layout)
    try:
        run = load_run_file(layout.root)
        if run is None:
            return Reservation(layout, None, description, origin, [], lock)
        check_same_run(layout, run, description, origin)
        changed, finished = _compare(layout, run, description)
        if finished is not None:
            lock.release()
            return finished
        return Reservation(layout, run, description, origin, changed, lock)
    except BaseException:
        lock.release()
        raise


def find_finished(root: Path, description: RunDescription) -> AlreadyFinished | None:
    """The described run, where it has ended and nothing is left to do; takes nothing."""
    layout = RunLayout(root.absolute())
    run = load_run_file(layout.root)
    if run is None or run.identity.get("fingerprint") != description.identity.get("fingerprint"):
        return None
    return _compare(layout, run, description)[1]


def _compare(
    layout: RunLayout, run: RunFile, description: RunDescription
) -> tuple[list[Change], AlreadyFinished | None]:
    """What differs from the attempt before; and the run itself, where none of it makes a finished run longer."""
    old = load_settings(layout.config)
    changed = changed_settings(old, description.config_text, description.numerics)
    is_done = run.state == "finished" and old and not any(_lengthens(change, old) for change in changed)
    return changed, AlreadyFinished(layout, run, [str(change) for change in changed]) if is_done else None


def _lengthens(change: Change, old: Mapping[str, Any]) -> bool:
    """Whether a finished run may have more to do after this change."""
    lengths = ("train.epochs", "train.max_steps")
    if change.key in lengths:
        if change.old is None:  # no limit so far, unless there was none at all: that is one epoch
            return all(old.get(key) is None for key in lengths)
        return change.new is None or change.new > change.old
    return change.key in ("stop.patience", "stop.min_delta")


def _new_run(description: RunDescription, origin: Origin) -> RunFile:
    return RunFile(
        id=secrets.token_hex(6),
        recipe=description.recipe,
        name=description.name,
        paceline=paceline.__version__,
        created=time.time(),
        identity=dict(description.identity),
        parent=origin.parent,
        init_from=origin.init_from,
    )


def _begin_attempt(
    layout: RunLayout,
    run: RunFile,
    description: RunDescription,
    world_size: int,
    changed: list[Change],
    lock: Lock,
    notes: list[str],
    spent_s: float = 0.0,
    hosts: Sequence[AttemptHost] = (),
) -> Claim:
    number = run.attempts[-1].attempt + 1 if run.attempts else 1
    software = describe_software(description.code)  # anew for each attempt: a restart imports what was edited meanwhile
    pulses = create_pulse_directory(run.id, number)
    attempt = Attempt(number, world_size, os.getpid(), time.time(), str(pulses), list(description.argv))
    attempt.changed, attempt.spent_s, attempt.hosts = [str(change) for change in changed], spent_s, list(hosts)
    attempt.software = software
    attempt.log_bytes = {path.name: path.stat().st_size for path in sorted(layout.launcher_log.parent.glob("*.log"))}
    run.attempts.append(attempt)
    run.state, run.reason = "running", ""
    try:
        # run.json first: a directory with anything else in it and no run.json is nobody's.
        save_fenced(layout, run)
        write_text(layout.config, description.config_text)
        write_json(layout.origins, description.origins)
        layout.stop_request.unlink(missing_ok=True)
        layout.launcher_log.parent.mkdir(exist_ok=True)
        _record_changes(layout, run, changed)
    except BaseException:
        remove_pulse_directory(pulses)
        raise
    return Claim(layout, run, number, pulses, notes, lock)


def _record_changes(layout: RunLayout, run: RunFile, changed: list[Change]) -> None:
    """What differs from the attempt before, or, at the beginning of a fork, from the run that it came from."""
    number = run.attempts[-1].attempt
    what, lines = f"settings changed since attempt {number - 1}", [str(change) for change in changed]
    if number == 1 and run.parent is not None:
        what = f"forked from step {run.parent['step']:,} of {run.parent['checkpoint']}"
        lines = run.parent["changed"]
    elif not changed:
        return
    fields: dict[str, Any] = {"what": what, "changed": lines}
    if any(change.is_numeric for change in changed):
        fields["why"] = "numerics are among them: equality bit for bit with earlier attempts is no longer promised"
    events = EventLog(layout.events, "launcher", number)
    events.write("note", **fields)
    events.close()
