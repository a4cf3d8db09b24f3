"""One rank's life: join the others, find the run directory, train, and say how it ended."""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

from paceline.engine.build import build_trainer
from paceline.engine.context import Context
from paceline.engine.failure import explain_exception
from paceline.engine.ranks import join_ranks
from paceline.engine.state import Ending
from paceline.engine.stop import StopWatch
from paceline.errors import Interrupted
from paceline.files import Lock
from paceline.launch.progress import Progress
from paceline.recipes.job import Job
from paceline.telemetry.events import EventLog, QuietLog
from paceline.telemetry.failure import format_failure
from paceline.telemetry.pulse import PulseWriter, create_pulse_directory
from paceline.telemetry.run_file import load_run_file
from paceline.worker.output import Output
from paceline.worker.place import Place, claim_together, take_claimed


class Session:
    """One worker process from its start to its exit code."""

    def __init__(self, arguments: argparse.Namespace, output: Output) -> None:
        self._arguments = arguments
        self._output = output
        self._rank = int(os.environ.get("RANK", "0"))
        self._place: Place | None = None
        self._pulse: PulseWriter | None = None

    def train(self, job: Job) -> int:
        arguments = self._arguments
        if arguments.attempt is not None:
            self._settle(take_claimed(arguments))
        ranks = join_ranks(job.config.parallel)
        if self._place is None:
            self._settle(claim_together(arguments, job, ranks))
        place = self._place
        assert place is not None
        workers_lock = Lock(place.layout.workers_lock)
        workers_lock.acquire(shared=True)
        watch = StopWatch(place.layout, place.attempt, job.config.stop.max_hours)
        watch.start()
        self._pulse = ranks.pulse = self._open_pulse(place)
        events = EventLog(place.layout.events, f"rank {ranks.rank}", place.attempt) if ranks.is_first else QuietLog()
        context = Context(job.config, place.given, ranks, place.layout, place.attempt, events, watch, self._pulse)
        with self._progress(place):
            trainer = build_trainer(context, job.recipe.build(job.config))
            try:
                ending = trainer.run()
            finally:
                trainer.close()
            events.write("end", state=ending.state, reason=ending.reason, step=ending.step)
            ranks.close()
        watch.close()
        return self._finish(ending)

    def fail(self, error: BaseException) -> int:
        """Reports an exception: as an event, to the launcher, or to the person at the terminal; the exit code that follows."""
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
            print(format_failure(record), file=self._output.errors)
        elif not is_secondary:
            print(text if self._arguments.debug else typed.render(), file=self._output.errors)
        if place is not None and place.claim is not None:
            with contextlib.suppress(Exception):
                place.claim.finish("failed", typed.problems[0].what, step, typed.exit_code)
        return typed.exit_code

    def _settle(self, place: Place) -> None:
        self._place = place
        self._output.redirect(place.layout.log(self._rank))

    def _open_pulse(self, place: Place) -> PulseWriter:
        run = load_run_file(place.layout.root)
        assert run is not None
        return PulseWriter(create_pulse_directory(run.id, place.attempt), self._rank, place.attempt)

    @contextlib.contextmanager
    def _progress(self, place: Place) -> Iterator[None]:
        """Under a foreign launcher rank 0 shows the progress itself; ours does it in its own process."""
        if place.claim is None:
            yield
            return
        from rich.console import Console

        console = Console(file=self._output.console, force_terminal=False)
        progress = Progress(place.layout, place.attempt, console, place.claim.pulses)
        ended = threading.Event()

        def show() -> None:
            while not ended.wait(0.5):
                progress.poll()

        thread = threading.Thread(target=show, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=5)
            progress.poll()
            progress.close()

    def _finish(self, ending: Ending) -> int:
        exit_code = Interrupted.exit_code if ending.reason in ("ctrl_c", "sigterm") else 0
        claim = self._place.claim if self._place else None
        if claim is None:
            return 0  # the launcher knows who asked, and answers for the whole run
        claim.finish(ending.state, ending.reason, ending.step, exit_code)
        claim.release()
        return exit_code
