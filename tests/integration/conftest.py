"""Real runs for the integration tests: ranks forked from a zygote, or whole commands as a person would type them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from paceline.telemetry.checkpoints import FileEntry, check_files, find_checkpoint, list_checkpoints, read_checkpoint
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.reader import Run, read_run

HERE = Path(__file__).parent
TINY = (
    "data.users=153",
    "data.items=60",
    "data.events_per_user=12",
    "data.max_length=16",
    "model.width=16",
    "model.blocks=1",
    "model.heads=2",
    "model.dropout=0",
    "train.global_batch=37",
    "train.epochs=null",
    "train.optimizer.lr=0.003",
    "train.schedule.warmup_steps=0",
    "telemetry.log_every=1",
    "telemetry.tensorboard=false",
    "evaluate.every_epochs=null",
    "checkpoint.every_epochs=null",
)
"""A model and a data set that train hundreds of steps a second; batch and size divide by nothing."""


HARD = (
    "model.dropout=0.2",
    "model.blocks=2",
    "train.micro_batch=5",
    "data.placement=host",
    "data.num_workers=1",
    "parallel.bucket_mb=0.004",
    "train.optimizer.weight_decay=0.01",
    "train.clip_norm=0.5",
    "evaluate.every_epochs=1",
    "evaluate.block=16",
    "checkpoint.every_steps=4",
)
"""Several buckets, ragged sequences, accumulation, loader processes, dropout: everything that could differ after a resume."""

WITHOUT_GPU = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
"""These tests are about ranks and processes; tests/gpu is about GPUs."""


def tiny(*overrides: str) -> list[str]:
    """The tiny configuration with some keys replaced or added."""
    given = {text.partition("=")[0] for text in overrides}
    return [*(text for text in TINY if text.partition("=")[0] not in given), *overrides]


class Zygote:
    """The process that forks ranks; see zygote.py."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(HERE.parents[1]), str(HERE), os.environ.get("PYTHONPATH", "")])
        environment = WITHOUT_GPU | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._ask(None) == "ready"

    def _ask(self, request: dict | None):
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if request is not None:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        return json.loads(line) if request is not None else line.strip()

    def start(
        self,
        ranks: int,
        argv: list[str],
        log: Path,
        plant: str | None = None,
        group: bool = False,
        script: Path | None = None,
    ) -> list[int]:
        request = {"op": "start", "ranks": ranks, "argv": argv, "log": str(log), "plant": plant, "group": group}
        return self._ask(request | {"script": str(script) if script is not None else None})

    def call(self, ranks: int, function: str, log: Path, timeout_s: float = 60) -> None:
        """`module:function` of the tests, called with `Ranks` on so many of them; fails with what they printed."""
        self._ask({"op": "start", "ranks": ranks, "argv": [], "log": str(log), "call": function, "group": True})
        codes = self.wait(timeout_s)
        shown = [(log / f"console_{rank}.log").read_text() for rank in range(ranks)]
        assert codes == [0] * ranks, "\n".join(shown)

    def bring(self, module: str, **environment: str) -> None:
        """Imports what the ranks of some tests need, once, in this environment."""
        self._ask({"op": "import", "module": module, "environment": environment})

    def wait(self, timeout_s: float) -> list[int]:
        return self._ask({"op": "wait", "timeout_s": timeout_s})

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process.stdout.close()


@dataclass
class Started:
    """Some ranks that run."""

    zygote: Zygote
    root: Path
    pids: list[int]
    console: Path
    codes: list[int] = field(default_factory=list)

    def wait(self, timeout_s: float = 60) -> Run:
        self.codes = self.zygote.wait(timeout_s)
        return read_run(self.root)

    def text(self, rank: int = 0) -> str:
        """What the rank printed to the terminal it was started from."""
        return (self.console / f"console_{rank}.log").read_text()

    def wait_for_step(self, step: int, timeout_s: float = 30) -> None:
        wait_for_step(self.root, step, timeout_s)


def losses(run: Run) -> list[tuple[int, float, float, float]]:
    return [(row["step"], row["loss"], row["grad_norm"], row["lr"]) for row in run.metrics]


def evaluations(run: Run) -> list[tuple]:
    return [tuple(value for name, value in row.items() if name not in ("attempt", "time")) for row in run.validation]


def final_files(root: Path) -> dict[str, FileEntry]:
    """Size and checksum of every file of the final checkpoint: weights, moments and counts."""
    return find_checkpoint(root, "final").manifest.files


def checkpoint_steps(root: Path) -> list[int]:
    """The steps of a run's checkpoints, the oldest first; every one of them must be whole."""
    checkpoints = [read_checkpoint(path) for path in list_checkpoints(RunLayout(root).checkpoints)]
    for checkpoint in checkpoints:
        check_files(checkpoint)
    return [checkpoint.step for checkpoint in reversed(checkpoints)]


def assert_same_bits(run: Run, reference: Run) -> None:
    """What the run counts as its own is the uninterrupted run's, to the last bit."""
    assert losses(run) == losses(reference)
    assert evaluations(run) == evaluations(reference)
    assert final_files(run.layout.root) == final_files(reference.layout.root)
    for word in ("latest", "best", "final"):
        assert find_checkpoint(run.layout.root, word).step == find_checkpoint(reference.layout.root, word).step, word


def wait_for_step(root: Path, step: int, timeout_s: float = 60) -> None:
    """Returns when metrics.csv shows the step (telemetry.log_every=1)."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        path = root / "metrics.csv"
        if path.exists() and path.read_text().count("\n") > step:
            return
        time.sleep(0.02)
    raise AssertionError(f"step {step} not reached in {timeout_s} s")


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    process = Zygote()
    yield process
    process.close()


def start_in(
    zygote: Zygote,
    folder: Path,
    ranks: int,
    *overrides: str,
    name: str = "run",
    plant: str | None = None,
    group: bool = False,
) -> Started:
    """Starts ranks on the tiny configuration; the run directory is folder/name."""
    console = folder / f"{name}-console"
    console.mkdir(exist_ok=True)
    root = folder / name
    argv = ["sasrec", *tiny(*overrides), "--out", str(root)]
    return Started(zygote, root, zygote.start(ranks, argv, console, plant, group), console)


@pytest.fixture
def start_ranks(zygote: Zygote, tmp_path: Path) -> Callable[..., Started]:
    """start_ranks(3, "train.max_steps=5", plant="nan:rank=1,step=3") -> Started, on the tiny configuration."""
    return functools.partial(start_in, zygote, tmp_path)


@pytest.fixture
def run_ranks(start_ranks: Callable[..., Started]) -> Callable[..., Run]:
    """Like start_ranks, waited for; every rank must have ended with `code`."""

    def run(ranks: int, *overrides: str, code: int = 0, **options) -> Run:
        started = start_ranks(ranks, *overrides, **options)
        result = started.wait()
        shown = "\n".join(started.text(rank) for rank in range(ranks))
        assert started.codes == [code] * ranks, shown
        return result

    return run


def find_ranks(pid: int) -> dict[int, psutil.Process]:
    """The rank processes below a command's, in the order of their ranks. What a rank forks, such as loaders, comes after it; compilers' processes
    come and go meanwhile."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            argv = process.cmdline()
            if "paceline.worker" in argv and "torch.distributed.run" not in argv:
                found.setdefault(int(process.environ()["RANK"]), process)
    return dict(sorted(found.items()))


@dataclass
class Command:
    """A `paceline` command as a person would start it, in a session of its own."""

    process: subprocess.Popen[str]
    root: Path | None = None

    def finish(self, timeout_s: float = 90) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def workers(self, count: int) -> list[psutil.Process]:
        """The rank processes, in the order of their ranks."""
        found = find_ranks(self.process.pid)
        assert [*found] == [*range(count)], found
        return [*found.values()]

    def agent(self) -> psutil.Process:
        return next(p for p in self.descendants() if "paceline.launch.warm" in p.cmdline())


@contextlib.contextmanager
def commands(folder: Path) -> Iterator[Callable[..., Command]]:
    """start("train", "sasrec", …) -> Command, in that folder; whatever still runs of them at the end is ended."""
    started: list[Command] = []

    def start(*arguments: str, **options) -> Command:
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=options.pop("cwd", folder),
            env=options.pop("env", WITHOUT_GPU),
            start_new_session=True,
            **options,
        )
        command = Command(process)
        started.append(command)
        return command

    try:
        yield start
    finally:
        for command in started:
            if command.process.poll() is None:
                for process in command.descendants():
                    process.kill()
                command.process.send_signal(signal.SIGKILL)
                command.process.communicate()


@pytest.fixture
def paceline(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """paceline("train", "sasrec", …) -> Command, as `commands` says."""
    with commands(tmp_path) as start:
        yield start


def assert_gone(processes: list[psutil.Process], timeout_s: float = 15) -> None:
    """Every one of these processes has ended (looked for by pid and start time)."""
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    alive = [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert not alive, [(process.pid, process.cmdline()) for process in alive]
