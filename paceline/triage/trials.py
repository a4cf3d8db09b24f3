"""One trial of a triage as a process: the run's own command with a few settings changed, short, supervised, ended with all it started.

trials = Trials(subject, ladder, steps=80, out=Path("runs/mine-triage"))
trials.run("compression off", {"parallel.compression": "none"})   -> Verdict("healthy", samples_per_s=1030.0, …)
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.config.describe import describe
from paceline.config.source import show
from paceline.errors import Interrupted, PacelineError
from paceline.files import storage_errors
from paceline.launch.signals import OperatorSignals
from paceline.sweep.ledger import slug
from paceline.sweep.trial import Slot, Trial, read_tail
from paceline.telemetry.reader import read_run
from paceline.triage.changes import can_go_on, replace_words
from paceline.triage.ladder import Ladder
from paceline.triage.subject import Subject
from paceline.triage.verdict import Seen, Verdict, judge_trial

_LOOK_S = 0.25
_GRACE_S = 20.0


class Trials:
    """Runs trials, one at a time, each in a new directory."""

    def __init__(self, subject: Subject, ladder: Ladder, steps: int, out: Path, signals: OperatorSignals) -> None:
        self._subject = subject
        self._ladder = ladder
        self._steps = steps
        self._out = out
        self._signals = signals

    def run(self, name: str, settings: Mapping[str, Any]) -> tuple[Verdict, Path]:
        """What came of it, and where it lies; Interrupted where the operator did not want to wait."""
        root = self._new_root(name)
        trial = Trial(self.command(settings, root), root, root.with_suffix(".log"), f"triage-{root}", Slot(0))
        timed_out = False
        try:
            while trial.poll() is None:
                time.sleep(_LOOK_S)
                if self._signals.asked is not None:
                    trial.ask_to_end()
                if (trial.asked_s or 0.0) > _GRACE_S or trial.age_s > self._ladder.config.timeout_s:
                    timed_out = trial.asked_s is None
                    break
        finally:
            code = trial.poll()
            trial.kill_all()
        if self._signals.asked is not None:
            raise Interrupted("triage was interrupted", str(self._out), "the same command goes on where it was")
        verdict = judge_trial(self._see(root, code, timed_out, trial))
        shutil.rmtree(root / "checkpoints", ignore_errors=True)
        return verdict, root

    def command(self, settings: Mapping[str, Any], root: Path) -> list[str]:
        """What a person would type."""
        checkpoint = self._subject.checkpoint if can_go_on(self._subject, settings) else None
        given = self._settings(checkpoint, settings) | dict(settings)
        words = [*self._subject.overrides, *(f"{name}={show(value)}" for name, value in given.items())]
        resume = str(checkpoint) if checkpoint is not None else "never"
        start = [sys.executable, "-m", "paceline", "train", self._subject.target]
        return [*start, *replace_words(words), "--out", str(root), "--resume", resume]

    def _settings(self, checkpoint: Path | None, changed: Mapping[str, Any]) -> dict[str, Any]:
        """Of every trial: short, watched, and ended when it stands still. `changed` is what this one is about."""
        known = describe(type(self._subject.job.config))
        wanted: dict[str, Any] = {
            "train.max_steps": (self._subject.start_step if checkpoint is not None else 0) + self._steps,
            "train.epochs": None,
            "telemetry.log_every": max(1, min(5, self._steps // 10)),
            "telemetry.tensorboard": False,
            "supervise.policy": "halt",
            "supervise.max_restarts": 0,
        } | self._ladder.config.set
        schedule = self._subject.job.config.train.schedule
        warmup = changed.get("train.schedule.warmup_steps", schedule.warmup_steps)
        bends = schedule.kind in ("linear", "cosine") or warmup >= self._steps
        if checkpoint is None and bends and schedule.horizon is None:
            # The trial's own length would bend the learning rate, or end before its warm-up; a checkpoint holds the run's.
            wanted["train.schedule.horizon"] = max(10 * self._steps, warmup + 1)
        return {name: value for name, value in wanted.items() if name in known}

    def _new_root(self, name: str) -> Path:
        parent = self._out / "trials"
        with storage_errors(parent):
            parent.mkdir(parents=True, exist_ok=True)
        number = max((int(path.name[:3]) for path in parent.iterdir() if path.name[:3].isdecimal()), default=0) + 1
        return parent / f"{number:03d}-{slug(name)}"

    def _see(self, root: Path, code: int | None, timed_out: bool, trial: Trial) -> Seen:
        tail = [line for line in read_tail(trial, 20) if line.strip()]
        script = getattr(self._subject.job.config, "command", None)
        is_bounded = script is None or "step" in script.metrics  # else nobody sees its steps, and can end it at one
        with contextlib.suppress(PacelineError, OSError):
            run = read_run(root)
            return Seen(code, timed_out, is_bounded or bool(run.metrics), run.events, run.metrics, self._level(), tail)
        return Seen(code, timed_out, is_bounded, tail=tail)

    def _level(self) -> float | None:
        """The loss at the checkpoint, where the run logged one."""
        run, step = self._subject.run, self._subject.start_step
        if run is None or self._subject.checkpoint is None:
            return None
        losses = [row["loss"] for row in run.metrics if row["step"] <= step and isinstance(row["loss"], float)]
        return losses[-1] if losses else None
