"""Every fault of the injector does what it says, in a script that has never heard of Paceline; nothing watches here."""

from __future__ import annotations

import ast
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from paceline.bench.faults.injected import fault_injector, fault_throttle
from tests.integration.conftest import assert_gone

SCRIPT = Path(__file__).with_name("faulted.py")


class Faulted:
    """Two ranks of the plain script, of which one suffers."""

    def __init__(self, zygote, folder: Path, steps: int, workers: int, **wish) -> None:
        self.folder = folder
        self.log = folder / "fault.jsonl"
        fault = {"rank": 1, "step": 6, "log": str(self.log)} | wish
        self._zygote = zygote
        argv = [json.dumps(fault), str(steps), str(folder), str(workers)]
        self.codes: list[int] | None = None
        self.pids = zygote.start(2, argv, folder, script=SCRIPT)

    def began(self, timeout_s: float = 60) -> dict:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            records = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
            if found := [record for record in records if record["event"] == "began"]:
                return found[0]
            time.sleep(0.02)
        raise AssertionError("the fault did not begin: " + self.console(0) + self.console(1))

    def console(self, rank: int) -> str:
        return (self.folder / f"console_{rank}.log").read_text()

    def stack(self, rank: int, word: str, timeout_s: float = 20) -> str:
        """Where the rank is, taken again until the word is in it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            os.kill(
                self.pids[rank], signal.SIGUSR1
            )  # a child of the zygote, not waited for yet: nobody else has its pid
            time.sleep(0.1)
            text = (self.folder / f"stacks_{rank}.txt").read_text().rpartition("Current thread")[2]
            if word in text:
                return text
        raise AssertionError(f"{word} is not in {text}")

    def end(self) -> list[int]:
        """Kills what is left; the exit codes."""
        return self.finish(0.0)

    def finish(self, timeout_s: float = 60) -> list[int]:
        if self.codes is None:  # nobody can be waited for twice
            self.codes = self._zygote.wait(timeout_s)
        return self.codes


@pytest.fixture
def suffer(zygote, tmp_path: Path) -> Iterator[Callable[..., Faulted]]:
    started: list[Faulted] = []

    def start(kind: str, steps: int = 4000, workers: int = 0, **wish) -> Faulted:
        started.append(Faulted(zygote, tmp_path, steps, workers, kind=kind, **wish))
        return started[-1]

    yield start
    for each in started:
        each.end()


def test_it_imports_torch_and_the_standard_library_alone() -> None:
    for path in Path(fault_injector.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        roots = {name.split(".")[0] for name in names}
        assert roots <= {"torch"} | sys.stdlib_module_names, path


@pytest.mark.slow  # a cell of the matrix shows the same, and more
def test_a_new_interpreter_plants_it_by_itself_in_ranks_alone(tmp_path: Path) -> None:
    log = tmp_path / "fault.jsonl"
    wish = json.dumps({"kind": "nan", "rank": 0, "step": 1, "log": str(log)})
    path = str(Path(fault_injector.__file__).parent)
    for rank in ({}, {"RANK": "0"}):
        assert not log.exists()
        environment = os.environ | {"PYTHONPATH": path, "FAULT": wish} | rank
        subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True, timeout=60)
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == ["planted"]


@pytest.mark.parametrize(
    ("place", "word"),
    [
        pytest.param("data", "in get", marks=pytest.mark.slow),
        pytest.param("forward", "in enter", marks=pytest.mark.slow),
        ("backward", "autograd"),
    ],
)
def test_an_endless_loop(suffer, place: str, word: str) -> None:
    faulted = suffer("loop", place=place)
    assert faulted.began()["step"] == 6
    guilty = faulted.stack(1, "in strike")
    assert word in guilty
    assert "plain.py" in faulted.stack(0, "backward" if place != "backward" else "plain.py")
    before = psutil.Process(faulted.pids[1]).cpu_times().user
    time.sleep(0.3)
    assert psutil.Process(faulted.pids[1]).cpu_times().user > before


def test_signals(suffer) -> None:
    faulted = suffer("sigstop", delay_s=0.02)
    faulted.began()
    process = psutil.Process(faulted.pids[1])
    deadline = time.monotonic() + 10
    while process.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.status() == psutil.STATUS_STOPPED
    assert psutil.Process(faulted.pids[0]).status() != psutil.STATUS_STOPPED
    faulted.end()
    faulted.log.unlink()
    faulted = suffer("sigkill")
    codes = faulted.finish()
    assert codes[1] == -signal.SIGKILL
    assert codes[0] != 0


def test_a_loader_process_that_sleeps(suffer) -> None:
    faulted = suffer("sleep", place="loader", workers=1, fetches_per_step=16)
    began = faulted.began()
    loader = next(child for child in psutil.Process(faulted.pids[1]).children() if child.pid == began["pid"])
    assert "dataloader.py" in faulted.stack(1, "_get_data")
    faulted.end()
    assert_gone([loader])


@pytest.mark.slow
def test_a_slow_rank(suffer) -> None:
    faulted = suffer("slow", steps=40, place="forward", share=1.0, step=20)
    began = faulted.began()
    assert began["pause_ms"] == pytest.approx(began["step_ms"])
    assert faulted.finish() == [0, 0]
    # 21 steps, of which each paused for that long: nothing can have made them shorter.
    assert time.time() - began["time"] > 20 * began["pause_ms"] / 1e3


@pytest.mark.parametrize("kind", ["order", "skip"])
def test_collectives_that_do_not_match(suffer, kind: str) -> None:
    faulted = suffer(kind)
    faulted.began()
    words = ("in all_reduce", "in barrier") if kind == "order" else ("in barrier", "plain.py")
    innocent, guilty = faulted.stack(0, "in _collectives"), faulted.stack(1, words[1])
    assert words[0] in innocent
    assert words[0] not in guilty
    assert all(psutil.Process(pid).is_running() for pid in faulted.pids)


def test_a_loss_that_is_not_a_number(suffer) -> None:
    faulted = suffer("nan", steps=20, rank=0)
    assert faulted.finish() == [0, 0]
    losses = [float(line.split()[-1]) for line in faulted.console(0).splitlines() if line.startswith("step")]
    assert len(losses) == 2
    assert all(math.isnan(loss) for loss in losses)  # the gradient went to both, and stays
    assert faulted.began()["step"] == 6


@pytest.mark.slow
def test_memory_that_grows(suffer) -> None:
    faulted = suffer("memory", mib=16, most_mib=160)
    faulted.began()
    process = psutil.Process(faulted.pids[1])
    first, deadline = process.memory_info().rss, time.monotonic() + 30
    while process.memory_info().rss < first + (128 << 20) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.memory_info().rss >= first + (128 << 20)


def test_a_file_system_that_does_not_answer(suffer) -> None:
    faulted = suffer("stuck_save", step=2)
    assert faulted.began()["step"] > 20
    assert "in save" in faulted.stack(1, "in slow_fsync")
    assert "in barrier" in faulted.stack(0, "in save")


@pytest.mark.slow
def test_a_file_system_that_answers_slowly(suffer) -> None:
    faulted = suffer("long_save", steps=20, rank=-1, step=2, pause_s=0.5)
    assert faulted.finish() == [0, 0]
    assert time.time() - faulted.began()["time"] >= 0.5


def test_a_disk_that_is_full(suffer, mount_disk, tmp_path: Path) -> None:
    large = suffer("disk_full", steps=12, fill=str(tmp_path / "filled"))
    assert large.finish() == [0, 0]
    assert not (tmp_path / "filled").exists()  # never a disk that somebody else may need
    assert '"refused"' in large.log.read_text()
    room = tmp_path / "room"
    mount_disk(room, "size=4m")
    suffer("disk_full", fill=str(room / "filled")).began()
    with pytest.raises(OSError, match="No space left"), open(room / "more", "wb", buffering=0) as more:
        more.write(b"more")


@pytest.mark.parametrize("by", ["quota", "signals"])
def test_cpu_time_taken_away_from_outside(suffer, by: str) -> None:
    faulted = suffer("throttle", share=1.0, by=by)
    began = faulted.began()
    if by == "quota" and began["by"] == "signals":
        pytest.skip("no control group with a CPU quota can be made here")
    assert began["by"] == by
    assert began["limit"] == pytest.approx(began["cores"] / 2)
    process, is_throttled = psutil.Process(faulted.pids[1]), False
    deadline = time.monotonic() + 20
    groups = [root / f"fault-{faulted.pids[1]}" for root in fault_throttle.ROOTS]
    while time.monotonic() < deadline and not is_throttled:
        if by == "signals":
            is_throttled = process.status() == psutil.STATUS_STOPPED
        else:
            stat = next(group for group in groups if group.exists()) / "cpu.stat"
            is_throttled = int(dict(line.split() for line in stat.read_text().splitlines())["nr_throttled"]) > 0
    assert is_throttled
    faulted.end()
    deadline = time.monotonic() + 10
    while any(group.exists() for group in groups) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(group.exists() for group in groups)


def test_where_no_control_group_can_be_made(tmp_path: Path, monkeypatch) -> None:
    """A directory that is none: it takes no quota, and nothing stays behind."""
    monkeypatch.setattr(fault_throttle, "ROOTS", (tmp_path / "missing", Path("/proc/self")))
    assert fault_throttle.begin_quota(os.getpid(), 0.5) is None


def test_a_fault_strikes_once(suffer, tmp_path: Path) -> None:
    (tmp_path / "fault.jsonl").write_text('{"event": "began", "kind": "sigkill"}\n')
    faulted = suffer("sigkill", steps=10)
    assert faulted.finish() == [0, 0], faulted.console(0) + faulted.console(1)
