"""What supervision costs: the CPU time of a real supervisor beside so many ranks, whose pulses a process of ours beats.

The ranks are small processes that do nothing but hold their pulse, with waits and what each step was for them alone, as training on CPUs
writes it: more is to be read of these than of ranks on a GPU. What a supervisor takes to start is told beside its share, not part of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from paceline.errors import PacelineError
from paceline.files import Lock
from paceline.supervise.rank_process import HeldProcess
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import create_pulse_directory, read_pulses, remove_pulse_directory
from paceline.telemetry.run_file import Attempt, RunFile

TARGET = 0.01
"""of one core, at 64 ranks"""
_START_S = 60.0
_SETTLE_S = 2.0
"""after its start: the first looks open everything"""
_RANKS = """
import os, sys, time
from pathlib import Path
from paceline.parentage import die_with_parent
from paceline.telemetry.pulse import PulseWriter
parent = os.getpid()
for rank in range(int(sys.argv[2])):
    if os.fork() == 0:
        die_with_parent(parent)
        pulse = PulseWriter(Path(sys.argv[1]), rank, 1)
        pulse.tell_own()
        step = 0
        while True:
            step += 1
            for phase in ("data", "forward", "backward", "optimizer"):
                pulse.beat(step, phase)
            pulse.wait(1.0 + rank % 3 * 0.1)
            time.sleep(float(sys.argv[3]))
time.sleep(3600)
"""


@dataclass(frozen=True)
class Cost:
    """What was measured, over several stretches of time beside one supervisor."""

    ranks: int
    step_s: float
    seconds: float
    shares: tuple[float, ...]
    """of one core, in each stretch"""
    memory_gib: float
    start_cpu_s: float
    """to start it: imports, and the first looks"""

    def summary(self) -> dict[str, Any]:
        return {
            "ranks": self.ranks,
            "step_ms": round(1000 * self.step_s, 3),
            "seconds": round(self.seconds, 2),
            "share": round(median(self.shares), 5),
            "shares": [round(share, 5) for share in self.shares],
            "start_cpu_s": round(self.start_cpu_s, 3),
            "memory_mib": round(self.memory_gib * 1024, 1),
            "target": TARGET,
        }


def measure(ranks: int, seconds: float, repeats: int, step_s: float = 0.1) -> Cost:
    """The CPU time of one supervisor over so many seconds, several times, its start left out."""
    with (
        tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch,
        _fake_run(Path(scratch), ranks, step_s) as root,
    ):
        command = [sys.executable, "-m", "paceline.supervise", str(root), "--attempt", "1"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        held = HeldProcess(process.pid)
        try:
            _settle(root)
            time.sleep(_SETTLE_S)
            start_cpu_s = _read_cpu_s(process.pid)
            shares = tuple(_measure_once(process.pid, seconds) for _ in range(repeats))
            if process.poll() is not None:
                do = f"run {' '.join(command)} by itself"
                raise PacelineError("the supervisor ended while it was measured", str(root), do)
            return Cost(ranks, step_s, seconds, shares, held.look().memory_gib or 0.0, start_cpu_s)
        finally:
            process.terminate()
            process.wait()
            held.close()


def _measure_once(pid: int, seconds: float) -> float:
    before, began = _read_cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (_read_cpu_s(pid) - before) / (time.monotonic() - began)


def _read_cpu_s(pid: int) -> float:
    """Of all its threads, to the nanosecond: what /proc says comes in ticks of 10 ms, and a look takes less than one."""
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise PacelineError(f"no clock of process {pid}: {os.strerror(error)}", "bench supervision", "run it again")
    return time.clock_gettime(clock.value)


def _settle(root: Path) -> None:
    """Until the supervisor has taken its place."""
    deadline = time.monotonic() + _START_S
    lock = Lock(RunLayout(root).supervisor_lock)
    while time.monotonic() < deadline:
        is_free = lock.acquire()
        lock.release()
        if not is_free:
            return
        time.sleep(0.1)
    raise PacelineError(f"the supervisor did not start in {_START_S:.0f} s", str(root), "is this machine very busy?")


@contextlib.contextmanager
def _fake_run(scratch: Path, ranks: int, step_s: float = 0.1) -> Iterator[Path]:
    run_id = secrets.token_hex(6)
    layout, pulses = RunLayout(scratch / "run"), create_pulse_directory(run_id, 1)
    layout.launcher_log.parent.mkdir(parents=True)
    run = RunFile(run_id, "bench", "", "", time.time(), {"fingerprint": "", "values": {}})
    run.attempts.append(Attempt(1, ranks, os.getpid(), time.time(), str(pulses), []))
    run.save(layout)
    process = subprocess.Popen([sys.executable, "-c", _RANKS, str(pulses), str(ranks), str(step_s)])
    try:
        deadline = time.monotonic() + _START_S
        while len(read_pulses(pulses)) < ranks:
            if time.monotonic() > deadline or process.poll() is not None:
                raise PacelineError(f"{ranks} processes could not be started", str(pulses), "try fewer with --ranks")
            time.sleep(0.1)
        yield layout.root
    finally:
        process.kill()  # the others die with it
        process.wait()
        remove_pulse_directory(pulses)
