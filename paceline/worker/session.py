"""One rank's life: join the others, find the run directory, train, and say how it ended."""

from __future__ import annotations

import argparse
import contextlib
import os
import traceback
from pathlib import Path

import torch

from paceline.config.contradictions import Facts
from paceline.engine.build import build_trainer
from paceline.engine.context import Context
from paceline.engine.failure import explain_exception
from paceline.engine.out_of_memory import explain_out_of_memory, is_out_of_memory
from paceline.engine.ranks import Ranks, join_ranks
from paceline.engine.state import Ending
from paceline.engine.stop import StopWatch
from paceline.files import Lock, storage_errors
from paceline.recipes.job import Job
from paceline.telemetry.events import EventLog, QuietLog
from paceline.telemetry.failure import format_failure
from paceline.telemetry.pulse import PulseWriter
from paceline.telemetry.run_file import load_run_file
from paceline.worker.output import Output
from paceline.worker.place import Place, take_claimed
from paceline.worker.signs import open_signs


class Session:
    """One worker process from its start to its exit code."""

    def __init__(self, arguments: argparse.Namespace, output: Output, pulse: PulseWriter | None = None) -> None:
        self._arguments = arguments
        self._early_pulse = pulse
        self._output = output
        rank = os.environ.get("RANK", "0")
        self._rank = int(rank) if rank.isdecimal() else 0
        self._place: Place | None = None
        self._pulse: PulseWriter | None = None

    def train(self, job: Job) -> int:
        if self._arguments.attempt is not None:
            place, job = take_claimed(self._arguments, job)
            self._settle(place)
            self._run(job, join_ranks(job.config.parallel), place, job.idle(job.given))
            return 0  # the launcher knows who asked, and answers for the whole run
        from paceline.worker.foreign import claim_together, conclude, idle_launch_keys, show_progress

        ranks = join_ranks(job.config.parallel)
        place = self._settle(claim_together(self._arguments, job, ranks))
        idle = [*job.idle(job.given), *idle_launch_keys(job)]
        if place.claim is None:
            self._run(job, ranks, place, idle)
            return 0
        with show_progress(place.claim, self._output):
            ending = self._run(job, ranks, place, idle)
        return conclude(place.claim, ending, self._output)

    def fail(self, error: BaseException) -> int:
        """Reports an exception: as an event, to the launcher, or to the person at the terminal; the exit code that follows."""
        if isinstance(error, SystemExit):
            return int(error.code or 0)
        place, step = self._place, self._pulse.step if self._pulse else None
        typed, is_secondary = explain_exception(error, place.layout.root if place else Path(), self._rank)
        text = "".join(traceback.format_exception(error))
        record = typed.to_record() | {"rank": self._rank, "step": step, "secondary": is_secondary, "traceback": text}
        if place is not None:
            with contextlib.suppress(OSError):
                EventLog(place.layout.events, f"rank {self._rank}", place.attempt).write("failure", **record)
            with contextlib.suppress(OSError):
                os.write(2, text.encode())  # into the rank's own log
        if self._arguments.attempt is not None or self._arguments.describe:
            # The end of the traceback is enough: all ranks share a pipe, which keeps writes of up to 4 KiB whole.
            self._output.tell(format_failure(record | {"traceback": text[-2000:]}))
        elif not is_secondary:
            self._output.tell(text if self._arguments.debug else typed.render())
        if place is not None and place.claim is not None:
            with contextlib.suppress(Exception):  # the error we are reporting comes first
                place.claim.finish("failed", typed.problems[0].what, step, typed.exit_code)
        return typed.exit_code

    def _settle(self, place: Place) -> Place:
        self._place = place
        self._output.redirect(place.layout.log(self._rank))
        return place

    def _run(self, job: Job, ranks: Ranks, place: Place, idle: list[tuple[str, str]]) -> Ending:
        workers_lock = Lock(place.layout.workers_lock)
        # Not the ranks of another host than the leader's: a host that lost its power may hold a lock of a network file system for long.
        if self._arguments.attempt is None or os.environ.get("GROUP_RANK", "0") == "0":
            workers_lock.acquire(shared=True)
        run = load_run_file(place.layout.root)
        assert run is not None
        watch = StopWatch(place.layout, place.attempt, job.config.stop.max_hours, run.attempts[-1].spent_s)
        watch.start()
        pulse = self._early_pulse
        if pulse is None:
            with storage_errors(run.attempts[-1].pulses):
                pulse = open_signs(place.layout, run.id, self._rank, place.attempt)
        self._pulse = ranks.pulse = pulse
        events = EventLog(place.layout.events, f"rank {ranks.rank}", place.attempt) if ranks.is_first else QuietLog()
        context = Context(
            job.config, job.given, idle, ranks, place.layout, run, place.attempt, events, watch, self._pulse
        )
        try:
            ending = self._train(job, context)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise explain_out_of_memory(error, context) from error
            raise
        events.write("end", state=ending.state, reason=ending.reason, step=ending.step)
        ranks.close()
        watch.close()
        workers_lock.release()
        return ending

    def _train(self, job: Job, context: Context) -> Ending:
        workload = job.recipe.build(job.config)
        local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or context.ranks.world_size)
        facts = Facts(context.ranks.world_size, torch.cuda.device_count(), len(workload.train_set()), local_ranks)
        job.check(facts)
        trainer = build_trainer(context, workload)
        try:
            return trainer.run()
        finally:
            trainer.close()
