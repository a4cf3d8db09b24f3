"""What a foreign loop holds while it trains: it tells its steps, phases, evaluations and events, and asks whether to stop.

    run.step(loss=loss, samples=len(batch))
    with run.phase("evaluate"): …
    run.validation(ndcg_10=0.31, num_samples=2000)
    if run.should_stop: break

Nothing here raises into the loop: what goes wrong is said once, and the training goes on. Only the training thread may call it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PHASES
from paceline.telemetry.sdk.claim import SdkClaim
from paceline.telemetry.sdk.ending import Ending, ExitWatch, describe_reason, explain
from paceline.telemetry.sdk.link import Link
from paceline.telemetry.sdk.memory import gpu_in_use, memory_gib
from paceline.telemetry.sdk.ranks import Rank
from paceline.telemetry.sdk.rows import metric_name
from paceline.telemetry.sdk.scribe import LOG
from paceline.telemetry.sdk.stopwatch import Stopwatch, Window
from paceline.telemetry.sdk.tally import LARGEST, Tally, read_number, read_whole
from paceline.telemetry.stop_request import EXIT_CODES

_OWN_KINDS = {"start", "resume", "restart", "plan", "evaluation", "baseline", "failure", "end"}
_HEAD = {"v", "time", "attempt", "source", "kind"}
_IN_STEP = {"start", "data", "forward", "backward", "optimizer", "compile", "step"}
"""phases of the step that comes; all others come after the last one that has ended: whoever evaluates alone is behind those who wait"""
Begin = Callable[[int], int | None]
"""Told the step that the attempt begins after, with its first step; says how many samples came before, where that is known."""
_LIVING: weakref.WeakSet[TrackedRun] = weakref.WeakSet()


class TrackedRun:
    """One attempt of a foreign loop, on one rank; `start_run` gives it. Without a link it writes nothing, and says so once."""

    def __init__(
        self,
        layout: RunLayout,
        rank: Rank,
        claim: SdkClaim | None,
        *,
        is_writing: bool,
        start_step: int,
        start_samples: int | None,
        log_every: int,
        heartbeat_s: float,
    ) -> None:
        self.path: Path = layout.root
        self.rank, self.world_size = rank.rank, rank.world_size
        self.last_step = start_step
        """the last step that has ended"""
        self._rank = rank
        self._link = Link(layout, rank, claim, heartbeat_s, self._beat) if is_writing else None
        self._log_every = log_every
        self._next_close = (start_step // log_every + 1) * log_every
        self._window_steps = 0
        """calls of `step` since the last row"""
        self._has_begun = start_step > 0
        self._begin: Begin | None = None
        """asked with the first step, where nobody gave a start_step"""
        self._tally = Tally(rank.world_size, start_samples, self._say)
        self._last: dict[str, Any] = {}
        self._stopwatch = Stopwatch()
        self._phases = {name: _Phase(self, name) for name in PHASES}
        self._was_told = False
        self._is_over = False
        self._exits = ExitWatch(self._finish, lambda: self.last_step)
        _LIVING.add(self)
        if self._link is not None:
            self._link.start()

    @property
    def is_one_host(self) -> bool:
        """Whether all ranks are on one host, where `should_stop` tells them at the same step; else they have to agree on it."""
        return self._rank.is_one_host

    @property
    def attempt(self) -> int | None:
        """The number of this attempt; None on another rank than 0 that has not heard of it yet, and where nothing is written."""
        return self._link.attempt if self._link is not None else None

    def step(
        self,
        loss: Any = None,
        *,
        samples: int | None = None,
        global_samples: int | None = None,
        units: float | None = None,
        step: int | None = None,
        epoch: int | None = None,
        lr: Any = None,
        grad_norm: Any = None,
    ) -> None:
        """An optimizer step has ended. loss, lr and grad_norm may be tensors: they are read, which waits for the device, once per window.

        samples: of this rank in this step; the tables count as many for every other rank. global_samples: of all ranks, exactly.
        """
        if self._is_over:
            return
        try:
            number = read_whole("step", step, self._say) if step is not None else None
            number = self.last_step + 1 if number is None else number
            if number <= self.last_step:
                self._say_backwards(number)
                return
            if not self._has_begun:
                self._begin_at(number - 1)
            self._keep(loss, lr, grad_norm, epoch)
            is_closing = number >= self._next_close
            if is_closing:
                self._tally.read_loss()  # before the clock is read: by then the device has done its work
            is_timed = self._stopwatch.end_step()
            self._window_steps += 1
            self.last_step = number
            self._tally.count(samples, global_samples, units, is_timed=is_timed)
            if is_closing:
                self._close_window()
            self._enter("step")
        except Exception as error:
            self._say("step", f"run.step could not be recorded: {type(error).__name__}: {error}")

    def phase(self, name: str) -> _Phase:
        """`with run.phase("data"):` what is inside counts as this phase; evaluate, checkpoint and the like do not count as training."""
        found = self._phases.get(name)
        if found is None:
            self._say(
                f"phase {name}", f"there is no phase {name!r}, so it is not timed (there are: {', '.join(PHASES)})"
            )
            found = _Phase(self, "")
        return found

    def validation(
        self,
        metrics: Mapping[str, Any] | None = None,
        /,
        *,
        step: int | None = None,
        split: str = "validation",
        num_samples: int | None = None,
        **values: Any,
    ) -> None:
        """What an evaluation came to, of the model after `step` (the last one); names that are no words go into a dictionary.

        Only rank 0 writes it.
        """
        if self._is_over or self._link is None or self._link.rows is None:
            return
        try:
            everything = {str(name): value for name, value in {**(metrics or {}), **values}.items()}
            given = {metric_name(name): read_number(name, v, self._say) for name, v in everything.items()}
            found = {name: value for name, value in given.items() if value is not None}
            at = self.last_step if step is None else int(step)
            place = {"step": at, "epoch": self._tally.epoch, "split": split, "num_samples": num_samples}
            row = {**place, "samples": self._tally.samples}
            rows = self._link.rows
            self._link.scribe.hand(lambda: rows.write_validation(row, found))
            seconds = self._stopwatch.seconds_in("evaluate")
            self._link.scribe.write_event("evaluation", **place, seconds=seconds, metrics=found)
        except Exception as error:
            self._say("validation", f"run.validation could not be recorded: {type(error).__name__}: {error}")

    def event(self, kind: str, **fields: Any) -> None:
        """Something worth a line in events.jsonl, such as event("note", what="…") or event("checkpoint", step=…). Rank 0 writes it."""
        if self._is_over or self._link is None or not self._rank.is_first:
            return
        if kind in _OWN_KINDS:
            self._say(f"kind {kind}", f"events of the kind {kind!r} are written by Paceline; yours is kept as a note")
            fields, kind = {"about": kind, **fields}, "note"
        named = {f"{name}_" if name in _HEAD else name: value for name, value in fields.items()}
        self._link.scribe.write_event(kind, **named)

    @property
    def should_stop(self) -> bool:
        """Whether `paceline stop` asks this run to end here. The ranks of one host are all told at the same step."""
        link = self._link
        if self._is_over or link is None:
            return False
        if self.world_size == 1 or not self._rank.is_one_host:
            is_told = link.scribe.stop_request is not None
        else:
            stop_step = link.agreement.stop_step if link.agreement is not None else None
            is_told = stop_step is not None and self.last_step >= stop_step
        self._was_told = self._was_told or is_told
        return is_told

    def finish(self, reason: str = "length", *, error: BaseException | str | None = None) -> None:
        """The training has ended: by its length, or say why (early_stop); or with an error. A second call does nothing."""
        self._finish(Ending("finished", describe_reason(reason)) if error is None else explain(error))

    def __enter__(self) -> TrackedRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(error=error)

    def _finish(self, ending: Ending) -> None:
        if self._is_over:
            return
        try:
            if self._window_steps:
                self._tally.read_loss()
                self._close_window()
        except Exception as error:
            self._say("rest", f"the last window could not be recorded: {type(error).__name__}: {error}")
        self._is_over = True
        self._exits.close()
        if self._link is None:
            return
        request = self._link.scribe.stop_request
        if ending.state == "finished" and self._was_told:
            reason = request.reason if request is not None else "stop_command"
            ending = Ending("stopped", reason, EXIT_CODES[reason])
        self._link.end(ending, self.last_step)

    def _enter(self, phase: str) -> None:
        if self._link is not None and self._link.pulse is not None:
            self._link.pulse.beat(min(self.last_step + (phase in _IN_STEP), LARGEST), phase)

    def _close_window(self) -> None:
        window, gpu = self._stopwatch.close_window(), gpu_in_use()
        row, counted = self._tally.close(self.last_step, self._window_steps)
        self._window_steps = 0
        self._next_close = (self.last_step // self._log_every + 1) * self._log_every
        link = self._link
        if link is None:
            return
        link.scribe.hand(lambda: self._log(link, row, window, counted, gpu))
        if link.rows is not None and link.agreement is not None and link.scribe.stop_request is not None:
            # Rank 0 names the end of the next window: no rank gets past it before this rank has begun it, and all wait for the
            # device there, so that none runs ahead of what the others have seen.
            link.agreement.stop_step = link.agreement.stop_step or self._next_close

    def _log(self, link: Link, row: dict[str, Any], window: Window, counted: dict[str, float], gpu: int | None) -> None:
        """By the scribe's thread."""
        row["memory_gib"] = memory_gib(gpu)
        times = window.columns()
        self._last = {name: row[name] for name in ("samples", "loss", "memory_gib") if row[name] is not None}
        if times:
            self._last["step_ms"] = {"p50": times["step_ms_p50"], "p90": times["step_ms_p90"]}
            self._last["phase_ms"] = window.phase_ms()
        if link.rows is not None:
            link.rows.write_window(row, window, counted)

    def _beat(self) -> dict[str, Any]:
        pulse = self._link.pulse if self._link is not None else None
        step, phase = (pulse.step, pulse.phase) if pulse is not None else (self.last_step, "step")
        return {"step": step, "phase": phase, **self._last}

    def _begin_at(self, start_step: int) -> None:
        """Nobody said where the attempt begins: its first step does. On every rank alike, so that their windows end together."""
        self._has_begun = True
        self._next_close = (start_step // self._log_every + 1) * self._log_every
        if self._begin is not None:
            self._tally.begin(self._begin(start_step))
            self._begin = None

    def _keep(self, loss: Any, lr: Any, grad_norm: Any, epoch: Any) -> None:
        """A value that is none costs itself, not the step."""
        try:
            self._tally.keep(loss, lr, grad_norm)
        except Exception as error:
            self._say("number loss", f"loss cannot be kept, and is left out: {type(error).__name__}: {error}")
        if epoch is not None:
            found = read_whole("epoch", epoch, self._say)
            self._tally.epoch = self._tally.epoch if found is None else found

    def _say_backwards(self, number: int) -> None:
        text = f"step {number} after step {self.last_step} is left out: steps are counted as they end, from 1, and only grow"
        self._say("backwards", text)

    def _say(self, about: str, text: str) -> None:
        if self._link is not None:
            self._link.scribe.say(about, text)
        else:
            LOG.debug("%s", text)


class _Phase:
    """A part of the loop; one object per name, used again and again."""

    __slots__ = ("_name", "_run")

    def __init__(self, run: TrackedRun, name: str) -> None:
        self._run = run
        self._name = name

    def __enter__(self) -> None:
        run = self._run
        if self._name and not run._is_over:
            run._stopwatch.enter(self._name)
            run._enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run = self._run
        if self._name and not run._is_over:
            run._stopwatch.leave()
            run._enter(run._stopwatch.phase or "step")


def _forget_in_child() -> None:
    """A forked process (a loader's) is not the rank: it has no threads of ours, and must not end the run."""
    for run in list(_LIVING):
        run._is_over = True
        run._exits.close()
        if run._link is not None:
            run._link.forget()


os.register_at_fork(after_in_child=_forget_in_child)
