from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from paceline.supervise import py_spy, stacks
from paceline.supervise.rank_process import HeldProcess
from paceline.supervise.settings import Settings
from paceline.supervise.stacks import Stacks, take_stacks
from paceline.supervise.watching import build_watch
from paceline.telemetry.stack_file import find_answerer

HANG = "def hang():\n    pulse.beat(3, 'forward'); time.sleep(300)\nhang()"


def take(run) -> Stacks:
    """Of whatever there is of this run at this moment."""
    watch = build_watch(run.layout, run.run, run.attempt, Settings())
    try:
        sight, _ = watch.look()
        return take_stacks(run.layout, watch.processes, sight.world_size)
    finally:
        watch.close()


@pytest.mark.timeout(60)
def test_ranks_are_asked_and_nobody_who_has_not_offered_to_answer(fake_run, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(py_spy, "find_program", lambda: None)
    run = fake_run(4)
    answering, silent = run.start(0, HANG), run.start(1, HANG, answers=False)
    stopped = run.start(2, HANG)
    os.kill(stopped, signal.SIGSTOP)
    while psutil.Process(stopped).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    # The file of a rank whose process has been replaced by one that does not answer.
    run.layout.stacks(1).write_text("== rank 1, attempt 1, pid 1 answers ==\n")
    found = take(run)
    assert "in hang" in found.texts[0]
    assert list(found.texts) == [0]
    assert found.missing[1] == f"it does not answer requests for its stacks; {py_spy.MISSING}"
    assert found.missing[2] == f"stopped: it cannot answer; {py_spy.MISSING}"
    assert found.missing[3] == "no process of it is known on this host"
    assert find_answerer(run.layout.stacks(0)) == answering
    os.kill(silent, 0)  # it lives: the signal would have ended it
    found.write(tmp_path / "stacks")
    assert (tmp_path / "stacks" / "rank_00002.txt").read_text().startswith("no stack: stopped")
    again = take(run)
    assert again.texts[0].count("most recent call first") == 1, "the answer to this request alone"


def test_a_handler_that_somebody_else_put_there_is_left_alone(fake_run, monkeypatch) -> None:
    monkeypatch.setattr(py_spy, "find_program", lambda: None)
    run = fake_run(1)
    code = (
        "import signal; signal.signal(signal.SIGUSR1, lambda *_: open(root / 'called', 'w')); "
        "stacks.check_handler(); pulse.beat(3, 'forward'); time.sleep(300)"
    )
    run.start(0, code)
    assert find_answerer(run.layout.stacks(0)) is None, "it has taken its offer back"
    assert take(run).texts == {}
    assert not (run.layout.root / "called").exists()


@pytest.mark.timeout(60)
def test_what_goes_wrong_with_one_rank_costs_nobody_elses_stacks(fake_run, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(py_spy, "find_program", lambda: None)
    run = fake_run(4)
    whole, unasked, *_ = (run.start(rank, HANG) for rank in range(4))
    signalled = HeldProcess.signal

    def signal_one(process: HeldProcess, number: int) -> bool:
        if process.pid == unasked:
            raise PermissionError(1, "Operation not permitted")
        has_reached = signalled(process, number)
        if process.pid not in (whole, unasked):
            # As on a file system that goes away between the question and the answer.
            rank = [each.pid for each in run.processes].index(process.pid)
            run.layout.stacks(rank).unlink()
            if rank == 3:
                run.layout.stacks(rank).symlink_to(run.layout.stacks(rank))
        return has_reached

    monkeypatch.setattr(HeldProcess, "signal", signal_one)
    found = take(run)
    assert list(found.texts) == [0]
    assert found.missing[1].startswith("it cannot be asked: [Errno 1] Operation not permitted")
    assert found.missing[2].startswith("its answer cannot be read: [Errno 2]")
    assert found.missing[3].startswith("its answer cannot be read: [Errno 40]")
    (tmp_path / "stacks" / "rank_00000.txt").mkdir(parents=True)
    found.write(tmp_path / "stacks")
    assert found.missing[0].startswith("it was taken, and cannot be written: [Errno 21]")
    assert "in hang" in found.texts[0], "it still is a witness"
    assert (tmp_path / "stacks" / "rank_00003.txt").read_text().startswith("no stack: its answer cannot be read")
    monkeypatch.setattr(stacks, "read_stacks", lambda pid, is_stopped: os.stat("/nowhere"))
    assert "it cannot be read from outside: [Errno 2]" in take(run).missing[1]


@pytest.mark.skipif(py_spy.find_program() is None, reason="py-spy is not installed")
@pytest.mark.timeout(60)
def test_py_spy_reads_a_stopped_process(fake_run) -> None:
    run = fake_run(1)
    pid = run.start(0, HANG)
    os.kill(pid, signal.SIGSTOP)
    found = take(run)
    assert "hang" in found.texts[0]
    assert found.missing == {}
    os.kill(pid, signal.SIGCONT)


@pytest.mark.skipif(py_spy.find_program() is None, reason="py-spy is not installed")
@pytest.mark.timeout(60)
def test_of_a_foreign_script_the_stacks_are_those_of_its_ranks(fake_run) -> None:
    run = fake_run(2)
    run.run.recipe = "command"
    run.run.save(run.layout)
    script = "def work():\n    import time; time.sleep(300)\nwork()"
    start = f"subprocess.Popen([sys.executable, '-c', {script!r}], env=os.environ | {{'RANK': str(rank)}})"
    code = f"import os, subprocess; ranks = [{start} for rank in (0, 1)]; pulse.beat(1, 'step'); time.sleep(300)"
    run.start(0, code)
    deadline = time.monotonic() + 20
    found = take(run)
    while found.missing or not all("work" in text for text in found.texts.values()):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
        found = take(run)
    assert sorted(found.texts) == [0, 1]
    assert not any("pulse.beat" in text for text in found.texts.values()), "not of what runs it for us"
    watch = build_watch(run.layout, run.run, run.attempt, Settings())
    watch.look()
    assert watch.kill() == []
    assert run.processes[0].poll() is None
    watch.close()


def test_py_spy_says_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho 'Permission Denied: Try running again with elevated permissions' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(py_spy, "find_program", lambda: str(program))
    text, why = py_spy.read_stacks(os.getpid())
    assert (text, why) == ("", "py-spy: Permission Denied: Try running again with elevated permissions")
    program.write_text("#!/bin/sh\nsleep 30\n")
    monkeypatch.setattr(py_spy, "_TIMEOUT_S", 0.2)
    assert "did not answer" in py_spy.read_stacks(os.getpid())[1]
