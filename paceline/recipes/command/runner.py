"""What is started in place of torchrun for a foreign script: runs it, reads its lines into the run directory, ends it when asked.

    python -m paceline.recipes.command.runner RUN ATTEMPT

The script gets a session of its own, so that it can be ended with everything it started in it. How it ended is told as a worker tells
it: an event, and a failure line on standard error.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from types import FrameType

from paceline.config.describe import value_at
from paceline.config.sections import RunConfig
from paceline.errors import NonFiniteError, PacelineError, UsageError
from paceline.files import storage_error
from paceline.launch.command import LAUNCH_MARK
from paceline.launch.marked import end_marked
from paceline.parentage import die_with_parent
from paceline.recipes.command.ending import explain_end
from paceline.recipes.command.lines import MOST_BYTES, LineSplitter
from paceline.recipes.command.reading import LineReader
from paceline.recipes.command.words import check_given, render_argv, samples_per_step
from paceline.recipes.job import load_job
from paceline.telemetry.events import EventLog
from paceline.telemetry.failure import format_failure
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseWriter
from paceline.telemetry.run_file import load_run_file
from paceline.telemetry.stop_request import read_stop_request

_POLL_S = 0.1
_TAIL = 40


class Runner:
    """One attempt of a script."""

    def __init__(self, root: Path, attempt: int) -> None:
        self._layout = RunLayout(root)
        self._attempt = attempt
        job = load_job(str(self._layout.config))
        self._config: RunConfig = job.config
        run = load_run_file(root)
        assert run is not None
        entry = run.attempts[-1]
        self._events = EventLog(self._layout.events, "script", attempt)
        self._lines = LineReader(self._layout, attempt, self._config)
        self._pulse = PulseWriter(Path(entry.pulses), 0, attempt)
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._world_size = entry.world_size
        self._asked: str | None = None
        """why the script is to end"""
        self._lingers_until: float | None = None
        self._given_up = 0.0
        self._splitter = LineSplitter()
        self._has_told_cut = False
        self._launcher = os.getppid()
        for name, reason in job.idle(job.given):
            self._events.write("note", what=f"{name} has no effect", why=reason)

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._on_sigterm)
        check_given(self._config)
        argv = render_argv(self._config, self._layout.root, self._world_size, _free_port())
        self._write_plan(argv)
        began = time.monotonic()
        try:
            script = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                preexec_fn=functools.partial(die_with_parent, os.getpid(), signal.SIGTERM),
            )
        except OSError as error:
            what = f"the script cannot be started ({error.strerror})"
            return self._fail(UsageError(what, argv[0], "check command.argv"))
        try:
            code = self._follow(script, began)
        finally:
            _end_group(script.pid)
            if os.getppid() != self._launcher:
                # The launcher, which ends whatever left the script's session, was killed; nobody but us will.
                end_marked(LAUNCH_MARK, {os.environ.get(LAUNCH_MARK, "")} - {""})
        self._lines.close()
        return self._conclude(code)

    def _follow(self, script: subprocess.Popen[bytes], began: float) -> int:
        """Reads until the script has ended, and ends it where somebody asks; its exit code, negative for a signal."""
        assert script.stdout is not None
        limit_s = (self._config.stop.max_hours or float("inf")) * 3600
        descriptor = script.stdout.fileno()
        os.set_blocking(descriptor, False)
        with selectors.DefaultSelector() as selector, open(self._layout.log(0), "ab", buffering=0) as log:
            selector.register(descriptor, selectors.EVENT_READ)
            while True:
                is_open = True
                if selector.select(_POLL_S):
                    is_open = self._take(descriptor, log)
                code = script.poll()
                if code is not None and (not is_open or not selector.select(0)):
                    return code
                if not is_open and code is None:
                    time.sleep(_POLL_S)
                request = read_stop_request(self._layout.stop_request, self._attempt)
                if request is not None:
                    self._ask(request.reason)
                elif time.monotonic() - began > limit_s:
                    self._ask("max_hours")
                elif self._lingers_until is not None and time.monotonic() > self._lingers_until:
                    self._ask("max_steps")
                self._press(script)

    def _take(self, descriptor: int, log: object) -> bool:
        """Reads what is there; False at the end of it."""
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return True
        # A full disk must not stop us from reading: a pipe that nobody empties blocks the script.
        with contextlib.suppress(OSError):
            log.write(data)  # type: ignore[attr-defined]
        now = time.time()
        for text in self._splitter.feed(data):
            self._tail.append(text)
            step = self._lines.read(text, now)
            if step is not None:
                self._pulse.beat(step, "step")
                self._reach(step)
        if self._splitter.has_cut and not self._has_told_cut:
            self._has_told_cut = True
            what = f"a line of the script has more than {MOST_BYTES:,} bytes"
            self._events.write("note", what=what, why="of such lines the head and the tail are read, not the middle")
        return bool(data)

    def _reach(self, step: int) -> None:
        """At its last step a script may still have something to say; one that goes on beyond it has not."""
        last = self._config.train.max_steps
        if last is not None and step > last:
            self._ask("max_steps")
        elif last is not None and step == last and self._lingers_until is None:
            grace_s: float = value_at(self._config, "command.stop_grace_s")
            self._lingers_until = time.monotonic() + grace_s

    def _ask(self, reason: str) -> None:
        self._asked = self._asked or reason

    def _press(self, script: subprocess.Popen[bytes]) -> None:
        """SIGTERM once something asks for the end, SIGKILL when that was not heeded."""
        if self._asked is None or script.poll() is not None:
            return
        grace_s: float = value_at(self._config, "command.stop_grace_s")
        if not self._given_up:
            self._given_up = time.monotonic() + grace_s
            with contextlib.suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGTERM)
        elif time.monotonic() > self._given_up:
            _end_group(script.pid)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self._ask("sigterm")

    def _conclude(self, code: int) -> int:
        step = self._lines.step or None
        if self._asked is not None:
            state = "finished" if self._asked == "max_steps" else "stopped"
            self._events.write("end", state=state, reason=self._asked, step=step)
            return 0
        loss = self._lines.loss
        if code == 0 and loss is not None and not math.isfinite(loss):
            what = f"the script ended with a loss that is not a number (step {self._lines.step})"
            return self._fail(NonFiniteError(what, str(self._layout.log(0)), "lower its learning rate"))
        if code == 0:
            self._events.write("end", state="finished", reason="finished", step=step)
            return 0
        return self._fail(explain_end(code, self._tail, str(self._layout.log(0))))

    def _fail(self, error: PacelineError) -> int:
        step = self._lines.step or None
        record = error.to_record() | {"rank": 0, "step": step, "secondary": False, "traceback": ""}
        with contextlib.suppress(OSError):
            self._events.write("failure", **record)
            self._events.write("end", state="failed", reason=error.problems[0].what, step=step)
        print(format_failure(record), file=sys.stderr, flush=True)
        return error.exit_code

    def _write_plan(self, argv: list[str]) -> None:
        counted = "samples" if samples_per_step(self._config) or "samples" in self._metrics else "steps"
        plan = dict.fromkeys(
            ("num_samples", "horizon", "accumulate", "slices", "steps_per_epoch", "total_samples", "objective")
        )
        total = self._config.train.max_steps
        self._events.write(
            "plan", world_size=self._world_size, start_step=0, total_steps=total, unit=counted, argv=argv, **plan
        )
        self._events.choice("PYTHONUNBUFFERED", None, "1", "lines are read as they are printed")

    @property
    def _metrics(self) -> dict[str, str]:
        found: dict[str, str] = value_at(self._config, "command.metrics")
        return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_group(group: int) -> None:
    """Whatever the script left in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def main(arguments: list[str]) -> int:
    root, attempt = Path(arguments[0]), int(arguments[1])
    try:
        return Runner(root, attempt).run()
    except OSError as error:
        typed = storage_error(error, root)
    except PacelineError as error:
        typed = error
    record = typed.to_record() | {"rank": 0, "step": None, "secondary": False, "traceback": ""}
    print(format_failure(record), file=sys.stderr, flush=True)
    return typed.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
