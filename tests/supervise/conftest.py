"""A run directory with pulses, and small processes that stand for its ranks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.files import Lock
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import create_pulse_directory, read_pulse
from paceline.telemetry.run_file import Attempt, RunFile

RANK = """
import sys, time
from pathlib import Path
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseWriter
from paceline.telemetry.stack_file import answer_requests
root, pulses, rank, answers, code = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
pulse = PulseWriter(pulses, rank, 1)
stacks = answer_requests(RunLayout(root).stacks(rank), rank, 1) if answers == "yes" else None
exec(code)
"""


class FakeRun:
    """One attempt whose ranks are what a test makes of them."""

    def __init__(self, root: Path, world_size: int) -> None:
        self.layout = RunLayout(root)
        root.mkdir()
        self.layout.launcher_log.parent.mkdir()
        run_id = f"test{os.getpid()}{time.monotonic_ns() % 10**9}"
        self.pulses = create_pulse_directory(run_id, 1)
        self.attempt = Attempt(1, world_size, os.getpid(), time.time(), str(self.pulses), ["paceline.worker"])
        self.run = RunFile(run_id, "sasrec", "", "0", time.time(), {"fingerprint": "", "values": {}})
        self.run.attempts.append(self.attempt)
        self.run.save(self.layout)
        self.owner = Lock(self.layout.owner_lock)
        self.owner.acquire()
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, rank: int, code: str, answers: bool = True, pulses: Path | None = None) -> int:
        """A process that has that rank's pulse, here or elsewhere, and then does as it is told; its pid."""
        pulses = pulses or self.pulses
        words = [str(self.layout.root), str(pulses), str(rank), "yes" if answers else "no", code]
        source = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": source}
        self.processes.append(subprocess.Popen([sys.executable, "-c", RANK, *words], env=environment))
        deadline = time.monotonic() + 30
        while True:
            pulse = read_pulse(pulses, rank)
            if pulse is not None and pulse.pid == self.processes[-1].pid and pulse.step:
                return pulse.pid
            assert time.monotonic() < deadline, "it has no pulse"
            time.sleep(0.02)

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        self.owner.release()


@pytest.fixture
def fake_run(tmp_path: Path) -> Iterator[Callable[[int], FakeRun]]:
    made: list[FakeRun] = []

    def make(world_size: int = 2) -> FakeRun:
        made.append(FakeRun(tmp_path / f"run{len(made)}", world_size))
        return made[-1]

    yield make
    for each in made:
        each.close()
