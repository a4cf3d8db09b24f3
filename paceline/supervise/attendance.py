"""Somebody who attends a run that others started: sees what there is to see, attempt after attempt, and supervises it if nobody does.

    found = load_running(root)                                   # a RunFile, or how it ended
    with Attendance(root, found, wants_halt=True) as attendance:
        while attendance.is_running: attendance.poll(); print(attendance.glance); attendance.wait()

A run needs one supervisor: who comes second shows, and what it wishes for it asks of the first.
"""

from __future__ import annotations

import contextlib
import errno
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.diagnose.advice import fit_keys
from paceline.diagnose.finding import finding_from_record
from paceline.diagnose.naming import name_host
from paceline.errors import UsageError
from paceline.files import is_locked
from paceline.supervise.glance import Glances
from paceline.supervise.settings import load_settings
from paceline.supervise.supervisor import LOOK_EVERY_S, Supervisor
from paceline.supervise.turn import Turn
from paceline.supervise.watching import Watch, build_watch
from paceline.telemetry.follow import Follower
from paceline.telemetry.layout import SCHEMA, RunLayout
from paceline.telemetry.ownership import unannounced_end
from paceline.telemetry.policy_request import PolicyWish
from paceline.telemetry.reader import read_run
from paceline.telemetry.run_file import SDK_RECIPE, Attempt, RunFile, load_run_file

_NEXT_ATTEMPT_S = 5.0
"""after one has ended: a launcher that brings it back needs a moment"""
_AGAIN_S = 60.0
"""a finding that comes and goes is said once in this time"""


def is_owned(layout: RunLayout, run: RunFile) -> bool:
    """Whether somebody owns the run at this moment; where its lock must not be touched, what run.json says has to do."""
    held = is_locked(layout.owner_lock)
    return layout.owner_lock.exists() and (run.state == "running" if held is None else held)


def load_running(root: Path) -> RunFile | str:
    """The run, if it is running; else how it ended, in words. Refuses what is no run directory."""
    run = read_run(root).run
    return run if run.attempts and is_owned(RunLayout(root), run) else describe_end(run)


def describe_end(run: RunFile) -> str:
    state, reason = run.state, run.reason
    if state == "running":
        state, reason = "failed", unannounced_end(run)
    at = f" at step {run.attempts[-1].step:,}" if run.attempts and run.attempts[-1].step is not None else ""
    why = f" ({reason})" if reason and reason != state else ""
    return f"not running: {state}{at}{why}"


class Attendance:
    """One command's look at one run."""

    def __init__(self, root: Path, run: RunFile, *, wants_halt: bool, is_glance: bool = False) -> None:
        self.glance: dict[str, Any] = {}
        self.is_running = True
        self.halted: tuple[str, str, str] | None = None
        """what, where, do: the run was halted while it was attended"""
        self.notes: list[str] = []
        self.ending = ""
        self._layout = RunLayout(root)
        self._run = run
        self._wants_halt = wants_halt
        self._is_glance = is_glance
        self._turn = Turn(self._layout)
        self._events = Follower(self._layout.events)
        self._events.skip()  # what was said before is not said again
        self._lines: list[str] = []
        self._said: dict[tuple[object, object], float] = {}
        """what was found, and when it was last said"""
        self._wish: PolicyWish | None = None
        self._refusal = ""
        """why its supervisor could not be asked"""
        self._ended_at: float | None = None
        self._asked = time.monotonic()
        self._enter_attempt(run.attempts[-1])

    def __enter__(self) -> Attendance:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_attempt()

    def poll(self) -> None:
        if self._supervisor is not None:
            self._supervisor.poll()
            sight, findings = self._supervisor.sight, self._supervisor.findings
            assert sight is not None
            watch = self._supervisor.watch
        else:
            assert self._watch is not None
            watch = self._watch
            sight, found = watch.look()
            findings = [name_host(fit_keys(finding, self._run.recipe), self._attempt) for finding in found]
        self.glance = self._glances.take(sight, findings, watch.told_step) | {"is_supervised": self._is_supervised}
        self._read_events()
        if not self._is_supervised:  # nobody writes down what is found
            for finding in findings:
                if self._is_new(finding.subject):
                    self._lines.append(f"{finding.kind}: {finding.what}")
        if time.monotonic() - self._asked >= 1.0 or (self._supervisor is not None and not self._supervisor.is_running):
            self._asked = time.monotonic()
            self._look_at_run()

    def wait(self) -> None:
        if self._supervisor is not None:
            self._supervisor.wait()
        elif self._watch is not None:
            self._watch.eye.wait(LOOK_EVERY_S)

    def take_lines(self) -> list[str]:
        """What is new and worth a line."""
        lines, self._lines = self._lines, []
        return lines

    def _enter_attempt(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._turn.enter(attempt)
        self._glances = Glances(self._layout, attempt)
        self._supervisor: Supervisor | None = None
        self._watch: Watch | None = None
        settings = load_settings(self._layout, self._run)
        if self._may_supervise(attempt):
            if self._wants_halt:
                settings = replace(settings, policy="halt")
            elif settings.policy == "restart":  # nobody here could start it again
                settings = replace(settings, policy="halt")
                self.notes.append("supervise.policy=restart: halted only, its launcher is not ours")
            self._supervisor = Supervisor(self._layout, self._run, attempt, settings)
            self._is_supervised: bool | None = True
            self.notes.append(f"supervising attempt {attempt.attempt}, policy {settings.policy}")
            return
        self._watch = build_watch(self._layout, self._run, attempt, settings)
        self._is_supervised = self._turn.is_taken
        self.notes += self._turn.describe(self._run, attempt, is_glance=self._is_glance)
        if self._wants_halt and not self._ask_to_halt(attempt):
            self.notes.append(
                f"cannot ask its supervisor to halt this run ({self._refusal}): this one shows, and asks again"
            )

    def _change_attempt(self, attempt: Attempt) -> None:
        self._leave_attempt(is_new_attempt=attempt.attempt != self._attempt.attempt)
        known = len(self.notes)
        self._enter_attempt(attempt)
        self._lines += self.notes[known:]

    def _ask_to_halt(self, attempt: Attempt) -> bool:
        """False: it cannot be written at this moment, as on a full disk. Refuses where it never can."""
        try:
            self._wish = PolicyWish(self._layout.policy_requests, attempt.attempt, "halt", "paceline watch")
        except OSError as error:
            self._refusal = error.strerror or str(error)
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                return False
            what = f"cannot ask its supervisor to halt this run ({self._refusal})"
            raise UsageError(what, str(self._layout.policy_requests), "use the account that started the run") from error
        self.notes.append("asked its supervisor to halt the run when it stands still, as long as this goes on")
        return True

    def _leave_attempt(self, *, is_new_attempt: bool = False) -> None:
        for held in (self._supervisor, self._watch):
            if held is not None:
                held.close()
        if self._wish is not None:
            self._wish.withdraw()
        self._supervisor = self._watch = self._wish = None
        self._turn.give_back(is_new_attempt=is_new_attempt)

    def _may_supervise(self, attempt: Attempt) -> bool:
        """Whether nobody else does; from here on nobody else will."""
        return not self._is_glance and self._turn.take(self._run, attempt)

    def _is_new(self, subject: tuple[object, object]) -> bool:
        now, last = time.monotonic(), self._said.get(subject)
        self._said[subject] = now
        return last is None or now - last > _AGAIN_S

    def _read_events(self) -> None:
        for event in self._events.records():
            is_ours = event.get("v") == SCHEMA and event.get("attempt") == self._attempt.attempt
            if not is_ours or event.get("kind") not in ("incident", "finding"):
                continue
            finding, place = finding_from_record(event.get("finding")), event.get("place") or ""
            if finding is None or not isinstance(finding.what, str) or not isinstance(place, str):
                continue  # what another version, or anybody else, wrote may be anything
            self._is_new(finding.subject)
            action = event.get("action") or "none"
            if action == "none":
                where = f"; see {place}/report.md" if place else ""
                self._lines.append(f"{finding.kind}: {finding.what}{where}")
                continue
            self._lines.append(f"{action}: {place}")
            again = "start the same command again: it goes on from the newest checkpoint"
            if self._run.recipe == SDK_RECIPE:
                again = "start it again as you did: it goes on from where your own checkpoints are"
            self.halted = (finding.what, place, f"read {place}/report.md, then {again}")

    def _look_at_run(self) -> None:
        """Whether it goes on, as the same attempt or another."""
        with contextlib.suppress(UsageError, OSError):
            run = load_run_file(self._layout.root)
            if run is None or not run.attempts:
                return
            owned = is_owned(self._layout, run)
            if owned and run.attempts[-1].attempt != self._attempt.attempt:
                self._run, self._ended_at, self.halted = run, None, None
                self._change_attempt(run.attempts[-1])
            elif owned and run.attempts[-1].state == "running":
                self._ended_at = None
                if self._supervisor is None and self._may_supervise(self._attempt):
                    self._change_attempt(self._attempt)  # who supervised it has gone
                elif self._supervisor is None:
                    self._is_supervised = self._turn.is_taken
                    if self._wants_halt and self._wish is None and self._ask_to_halt(self._attempt):
                        self._lines.append(self.notes[-1])
            else:
                self._ended_at = self._ended_at or time.monotonic()
                is_over = run.state in ("finished", "stopped") or (self.halted is not None and not owned)
                if is_over or time.monotonic() - self._ended_at >= _NEXT_ATTEMPT_S:
                    self.is_running = False
                    self.ending = describe_end(run)
