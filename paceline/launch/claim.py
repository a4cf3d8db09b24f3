"""One run, one owner: taking a run directory for a new attempt, and giving it back with how the attempt ended.

    claim = claim_run(root, description, world_size=2)         # or AlreadyFinished, or OccupiedError
    ...                                                        # workers write below claim.layout as attempt claim.attempt
    claim.finish("finished", "finished", step=400, exit_code=0)

Whoever claims holds the owner lock until it ends; workers share the workers lock. Under a foreign launcher rank 0 claims before any
rank takes the workers lock. Nothing of an earlier attempt is deleted.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paceline
from paceline.config.changes import Change, find_changes, settings_in
from paceline.errors import OccupiedError
from paceline.files import Lock, storage_errors, write_json, write_text
from paceline.launch.orphans import end_orphans
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import create_pulse_directory, remove_pulse_directory
from paceline.telemetry.run_file import Attempt, RunFile, load_run_file

LAUNCHER_KILLED = "its launcher was killed"
_LENGTH_KEYS = ("train.epochs", "train.max_steps", "stop.patience", "stop.min_delta", "stop.max_hours")


@dataclass(frozen=True)
class RunDescription:
    """What a run directory says about the run: who asks for it and with which configuration."""

    recipe: str
    name: str
    argv: list[str]
    config_text: str
    """the resolved configuration, as config.yaml will hold it"""
    origins: Mapping[str, Any]
    identity: Mapping[str, Any]
    """{"fingerprint": …, "values": {dotted key: value}}"""
    numerics: Collection[str] = ()
    """keys of which another value changes digits, not the training"""


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

    def release(self) -> None:
        self._lock.release()


@dataclass(frozen=True)
class AlreadyFinished:
    """There is nothing to do: this run reached its end in an earlier attempt."""

    layout: RunLayout
    run: RunFile
    changed: list[str]
    """`key: old → new` of settings that differ from the finished run's without making it another run"""


def claim_run(
    root: Path, description: RunDescription, world_size: int, *, orphan_wait_s: float = 5.0
) -> Claim | AlreadyFinished:
    """Takes `root` for a new attempt of the described run, or says why not; see the module's docstring."""
    layout = RunLayout(root.absolute())
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        _check_foreign(layout)
        lock = Lock(layout.owner_lock)
        if not lock.acquire_within(0.3):  # `paceline stop` looks at the lock by touching it
            lock.release()
            raise _living_owner(layout)
    try:
        run = load_run_file(layout.root)
        changed: list[Change] = []
        if run is not None:
            _check_identity(layout, run, description)
            old = _load_settings(layout)
            changed = _compare_settings(old, description)
            if run.state == "finished" and old and not any(change.key in _LENGTH_KEYS for change in changed):
                lock.release()
                return AlreadyFinished(layout, run, [str(change) for change in changed])
        with storage_errors(root):
            return _begin_attempt(layout, run, description, world_size, changed, lock, orphan_wait_s)
    except BaseException:
        lock.release()
        raise


def _check_foreign(layout: RunLayout) -> None:
    """Refuses a directory with things in it that no run put there (our locks and a torn first write do not count)."""
    if layout.run.exists():
        return
    ours = {layout.owner_lock.name, layout.workers_lock.name}
    others = sorted(
        entry.name
        for entry in os.scandir(layout.root)
        if entry.name not in ours and not entry.name.startswith(f".{layout.run.name}.")
    )
    if others:
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        raise OccupiedError(
            f"the directory is not empty and not a run of Paceline (it holds {shown})",
            str(layout.root),
            "choose an empty or new directory with --out DIR",
        )


def _living_owner(layout: RunLayout) -> OccupiedError:
    run = load_run_file(layout.root)
    pid = run.attempts[-1].owner_pid if run is not None and run.attempts else None
    who = f"process {pid}" if pid is not None else "a process that is just starting it"
    return OccupiedError(
        f"this run is still running: {who} owns it",
        str(layout.root),
        f"paceline stop {layout.root}, or choose another directory with --out DIR",
    )


def _check_identity(layout: RunLayout, run: RunFile, description: RunDescription) -> None:
    old, new = run.identity, description.identity
    if old.get("fingerprint") == new.get("fingerprint"):
        return
    changes = [str(change) for change in find_changes(old.get("values", {}), new.get("values", {}))]
    raise OccupiedError(
        "the directory belongs to another run; different are:\n    " + "\n    ".join(changes or ["the fingerprint"]),
        str(layout.root),
        "choose another directory with --out DIR (without --out each configuration gets its own)",
    )


def _load_settings(layout: RunLayout) -> dict[str, Any]:
    """The settings of the last attempt; none where its launcher died before it wrote them."""
    try:
        return settings_in(layout.config.read_text(encoding="utf-8"))
    except (FileNotFoundError, UnicodeDecodeError):
        return {}


def _compare_settings(old: Mapping[str, Any], description: RunDescription) -> list[Change]:
    found = find_changes(old, settings_in(description.config_text), description.numerics) if old else []
    return [change for change in found if change.key != "run.out"]  # whatever it says, it led to this directory


def _begin_attempt(
    layout: RunLayout,
    run: RunFile | None,
    description: RunDescription,
    world_size: int,
    changed: list[Change],
    lock: Lock,
    orphan_wait_s: float,
) -> Claim:
    notes = []
    if run is None:
        run = RunFile(
            id=secrets.token_hex(6),
            recipe=description.recipe,
            name=description.name,
            paceline=paceline.__version__,
            created=time.time(),
            identity=dict(description.identity),
        )
    else:
        notes += end_orphans(layout, run, wait_s=orphan_wait_s)
        notes += _close_earlier(run)
    number = run.attempts[-1].attempt + 1 if run.attempts else 1
    pulses = create_pulse_directory(run.id, number)
    attempt = Attempt(number, world_size, os.getpid(), time.time(), str(pulses), list(description.argv))
    attempt.changed = [str(change) for change in changed]
    run.attempts.append(attempt)
    run.state, run.reason = "running", ""
    try:
        # run.json first: a directory with anything else in it and no run.json is nobody's.
        run.save(layout)
        write_text(layout.config, description.config_text)
        write_json(layout.origins, description.origins)
        layout.stop_request.unlink(missing_ok=True)
        layout.launcher_log.parent.mkdir(exist_ok=True)
        _record_changes(layout, number, changed)
    except BaseException:
        remove_pulse_directory(pulses)
        raise
    return Claim(layout, run, number, pulses, notes, lock)


def _record_changes(layout: RunLayout, attempt: int, changed: list[Change]) -> None:
    if not changed:
        return
    what = f"settings changed since attempt {attempt - 1}"
    fields: dict[str, Any] = {"what": what, "changed": [str(change) for change in changed]}
    if any(change.is_numeric for change in changed):
        fields["why"] = "numerics are among them: equality bit for bit with earlier attempts is no longer promised"
    events = EventLog(layout.events, "launcher", attempt)
    events.write("note", **fields)
    events.close()


def _close_earlier(run: RunFile) -> list[str]:
    """Ends the books of earlier attempts; what one says to the operator."""
    for attempt in run.attempts:
        remove_pulse_directory(Path(attempt.pulses))
        if attempt.state == "running":
            attempt.state, attempt.reason, attempt.ended = "failed", LAUNCHER_KILLED, None
    if not run.attempts:
        return []
    last = run.attempts[-1]
    how = f"{last.state}: {last.reason}" if last.reason and last.reason != last.state else last.state
    reached = f" at step {last.step}" if last.step is not None else ""
    return [
        f"attempt {last.attempt} of this run ended{reached} ({how}); attempt {last.attempt + 1} starts again from step 0"
    ]
