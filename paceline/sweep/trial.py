"""One trial as a process: `paceline train` in a session of its own, watched from outside and ended with everything it started.

    trial = Trial(command, root=sweep / "trials/0007-bucket_mb=25-r1", log=…, mark="1a2b3c-7", slot=slot)
    while trial.poll() is None: trial.look()                 # step, rate
    trial.ask_to_end(); trial.kill_all()

The process dies with the driver. Whatever it started carries a mark in its environment, by which it is found also when it has left the
session, or when the driver was killed and another one takes over.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError
from paceline.files import read_last_records
from paceline.launch.marked import end_marked
from paceline.parentage import die_with_parent
from paceline.telemetry.follow import Follower
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import read_pulse, remove_pulse_directory
from paceline.telemetry.run_file import load_run_file

MARK = "TRIAL_OF_PACELINE"
_GONE_S = 10.0


@dataclass(frozen=True)
class Slot:
    """The part of the machine that one of several trials side by side has."""

    number: int
    cores: frozenset[int] | None = None
    """None: all"""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES; None: as inherited"""


class Trial:
    """A started trial."""

    def __init__(self, command: Sequence[str], root: Path, log: Path, mark: str, slot: Slot) -> None:
        self.root = root
        self.log = log
        self.mark = mark
        self.began = time.time()
        self._started_at = time.monotonic()
        self.ended: float | None = None
        self.step: int | None = None
        self.samples_per_s: float | None = None
        self.first_step_at: float | None = None
        self.broke_at: int | None = None
        """the step from which on its loss was not a number, in two rows that follow each other"""
        self._is_broken = False
        self._asked_at: float | None = None
        self._kills = _memory_kills()
        self._layout = RunLayout(root)
        self._metrics = Follower(self._layout.metrics)
        self.pulses: Path | None = None
        """where its ranks' are, once it is known"""
        environment = os.environ | {MARK: mark}
        if slot.visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = slot.visible
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
                preexec_fn=functools.partial(_settle, os.getpid(), slot.cores),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        code = self._process.poll()
        if code is not None and self.ended is None:
            self.ended = time.time()
        return code

    @property
    def age_s(self) -> float:
        """Since its start, whatever becomes of the machine's clock."""
        return time.monotonic() - self._started_at

    @property
    def saw_memory_killer(self) -> bool:
        """Whether the kernel has killed a process for want of memory since the beginning, somewhere on this machine."""
        return _memory_kills() > self._kills

    def look(self) -> None:
        """Reads how far it is."""
        if self.pulses is None:
            with contextlib.suppress(PacelineError, OSError):
                run = load_run_file(self.root)
                self.pulses = Path(run.attempts[-1].pulses) if run is not None and run.attempts else None
            if self.pulses is None:
                return
        pulse = read_pulse(self.pulses, 0)
        if pulse is not None and pulse.step:
            self.step = pulse.step
            self.first_step_at = self.first_step_at or time.time()
        for row in self._metrics.rows():
            rate = row.get("samples_per_s")
            self.samples_per_s = rate if isinstance(rate, float) else self.samples_per_s
            self._look_at_loss(row)

    def _look_at_loss(self, row: dict[str, Any]) -> None:
        loss, was_broken = row.get("loss"), self._is_broken
        if isinstance(loss, int | float):
            self._is_broken = not math.isfinite(loss)
            # One alone may be a step that was left out (train.nonfinite=skip).
            if was_broken and self._is_broken and self.broke_at is None:
                self.broke_at = row["step"]

    @property
    def asked_s(self) -> float | None:
        """For how long it has been asked to end; None: it has not."""
        return None if self._asked_at is None else time.monotonic() - self._asked_at

    def ask_to_end(self) -> None:
        """Once; `paceline train` then stops all ranks at one step."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def kill_all(self) -> list[int]:
        """Ends it and everything it started, and waits; returns the pids that did not go."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it carries our mark: if it stays, it is named below
            self._process.wait(_GONE_S)
        if self.ended is None:
            self.ended = time.time()
        left = end_marked(MARK, {self.mark})
        clear_pulses(self.root)
        return left


def _memory_kills() -> int:
    """How often the kernel has killed a process for want of memory; 0 where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _settle(parent_pid: int, cores: frozenset[int] | None) -> None:
    """In the new process, before it becomes the trial."""
    die_with_parent(parent_pid)
    if cores is not None:
        os.sched_setaffinity(0, cores)


def train_command(target: str, words: Sequence[str], root: Path) -> list[str]:
    """What a person would type, for the interpreter that runs us."""
    return [sys.executable, "-m", "paceline", "train", target, *words, "--out", str(root), "--resume", "never"]


def clear_pulses(root: Path) -> None:
    """What a launcher that was killed left in shared memory: no other attempt of this run will ever take it away."""
    with contextlib.suppress(PacelineError, OSError):
        run = load_run_file(root)
        for attempt in run.attempts if run is not None else ():
            remove_pulse_directory(Path(attempt.pulses))


def read_tail(trial: Trial, num_lines: int) -> list[str]:
    """The last lines of the launcher, and of the rank that failed first, for a person."""
    if not num_lines:
        return []
    lines = [f"{trial.log.name}:", *_last_lines(trial.log, num_lines)]
    layout = RunLayout(trial.root)
    failures = [event for event in read_last_records(layout.events) if event.get("kind") == "failure"]
    primary = [event for event in failures if not event.get("secondary")] or failures
    rank = primary[0].get("rank") if primary else 0
    guilty = layout.log(rank if isinstance(rank, int) else 0)
    inside = _last_lines(guilty, num_lines)
    return [*lines, f"logs/{guilty.name}:", *inside] if inside else lines


def _last_lines(path: Path, num_lines: int) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 400 * num_lines))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-num_lines:]


def build_slots(num: int, cores: Sequence[int], visible: Sequence[str]) -> list[Slot]:
    """The machine shared out: GPUs where there are some, else cores; one slot has it all."""
    if num == 1:
        return [Slot(0)]
    if visible:
        share = len(visible) // num
        return [Slot(i, visible=",".join(visible[i * share : (i + 1) * share])) for i in range(num)]
    share = max(1, len(cores) // num)
    return [Slot(i, cores=frozenset(cores[(i * share + k) % len(cores)] for k in range(share))) for i in range(num)]
