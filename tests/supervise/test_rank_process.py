from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from paceline.supervise import rank_process
from paceline.supervise.ending import kill_attempt
from paceline.supervise.eye import Eye
from paceline.supervise.rank_process import HeldProcess, is_hidden, open_process
from paceline.supervise.station import Station

STEP = "pulse.beat(3, 'forward'); time.sleep(300)"


def wait_for(process: HeldProcess, *states: str) -> None:
    deadline = time.monotonic() + 20
    while process.look().state not in states:
        assert time.monotonic() < deadline, process.look()
        time.sleep(0.01)


def is_living(pid: int) -> bool:
    try:
        process = HeldProcess(pid)
    except OSError:
        return False
    is_alive = process.is_alive
    process.close()
    return is_alive


@pytest.mark.timeout(60)
def test_a_process_is_ours_by_the_pulse_that_it_holds_and_tells_its_states(fake_run) -> None:
    run = fake_run(1)
    pid = run.start(0, STEP)
    process = open_process(pid, f"{run.pulses}/")
    assert process is not None
    assert process.look().state in ("running", "sleeping")
    assert process.look().memory_gib > 0
    assert process.signal(signal.SIGSTOP)
    wait_for(process, "stopped")
    process.signal(signal.SIGKILL)
    wait_for(process, "zombie")
    assert process.look().exit_code == -9, "told as long as its parent has not asked"
    run.processes[0].wait()
    assert (process.look().state, process.look().exit_code) == ("gone", -9)
    assert not process.is_alive
    assert not process.signal(signal.SIGKILL)
    process.close()


@pytest.mark.timeout(60)
def test_a_pid_of_another_program_is_never_taken_nor_signalled(fake_run) -> None:
    run = fake_run(2)
    stranger = subprocess.Popen(["sleep", "300"])
    run.processes.append(stranger)
    assert open_process(stranger.pid, f"{run.pulses}/") is None
    assert not is_hidden(stranger.pid), "it shows itself, and is not ours"
    # A pulse whose writer has gone, and whose number somebody else has by now.
    run.start(0, STEP)
    pid = run.start(1, "pulse.beat(3, 'forward')")
    run.processes[-1].wait()
    held = run.pulses / "rank_00001"
    held.write_bytes(held.read_bytes().replace(pid.to_bytes(4, "little"), stranger.pid.to_bytes(4, "little"), 1))
    eye = Eye(run.attempt, Station())
    sight = eye.look()
    assert sight.ranks[1].pulse.pid == stranger.pid
    assert sight.ranks[1].process.state == "gone"
    assert list(eye.processes) == [0]
    assert kill_attempt(eye.processes.values(), [f"{run.pulses}/"]) == []
    assert run.processes[1].wait() == -9
    assert stranger.poll() is None
    eye.close()


@pytest.mark.timeout(60)
def test_what_a_rank_started_ends_with_it(fake_run) -> None:
    run = fake_run(1)
    # The fork holds the same pulse, and waits without a beat: the first one says that the pids are written.
    children = "import os, subprocess; child = subprocess.Popen(['sleep', '300']); fork = os.fork(); "
    tell = "fork or time.sleep(300); (root / 'pids').write_text(f'{child.pid} {fork}'); "
    pid = run.start(0, f"{children}{tell}{STEP}")
    pids = [int(word) for word in (run.layout.root / "pids").read_text().split()]
    process = open_process(pid, f"{run.pulses}/")
    assert kill_attempt([process], [f"{run.pulses}/"]) == []
    deadline = time.monotonic() + 10
    while any(is_living(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.close()


WATCHER = """
import os, sys
from paceline.supervise.ending import kill_attempt
from paceline.supervise.rank_process import HeldProcess
rank = HeldProcess(int(sys.argv[1]))
left = kill_attempt([rank, HeldProcess(os.getpid())])
print(left, rank.is_alive, flush=True)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("between", ["", "sh -c '\"$@\"; true' sh "], ids=["its own child", "through a shell"])
def test_a_watcher_that_a_rank_has_started_outlives_it(fake_run, between: str) -> None:
    run = fake_run(1)
    words = "[*shlex.split(between), sys.executable, '-c', code, str(os.getpid())]"
    told = run.layout.root / "told"
    start = f"import os, shlex, subprocess; code, between = {WATCHER!r}, {between!r}; "
    pid = run.start(0, f"{start}subprocess.Popen({words}, stdout=open({str(told)!r}, 'w')); {STEP}")
    assert run.processes[0].wait() == -9
    deadline = time.monotonic() + 20
    while not told.read_text().endswith("\n"):
        assert time.monotonic() < deadline, pid
        time.sleep(0.02)
    assert told.read_text() == "[] False\n"


def test_a_process_that_nobody_may_look_at_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(rank_process, "open", refuse, raising=False)
    assert is_hidden(1)
    monkeypatch.undo()
    assert not is_hidden(2**22 + 1)


@pytest.mark.timeout(60)
def test_what_a_process_has_mapped_of_files_is_not_its_memory(fake_run, tmp_path) -> None:
    data = tmp_path / "tokens"
    data.write_bytes(bytes(64 << 20))
    run = fake_run(1)
    touch = f"import mmap\nfile = open({str(data)!r}, 'r+b')\nview = mmap.mmap(file.fileno(), 0)\nsum(view[::4096])\n"
    own = "own = bytearray(b'1') * (32 << 20)\n"
    process = HeldProcess(run.start(0, f"{touch}{own}pulse.beat(3, 'forward'); time.sleep(300)"))
    memory_gib = process.look().memory_gib
    process.close()
    assert 32 / 1024 < memory_gib < 64 / 1024


def test_a_process_that_goes_while_it_is_taken_is_gone_and_nothing_worse(monkeypatch) -> None:
    process = subprocess.Popen(["sleep", "300"])
    opened = os.open

    def reap(path: str, *flags: int) -> int:
        descriptor = opened(path, *flags)
        if path.endswith("statm"):
            process.kill()
            process.wait()
        return descriptor

    monkeypatch.setattr(os, "open", reap)
    held = HeldProcess(process.pid)
    assert held.look().state == "gone"
    assert not held.signal(signal.SIGKILL)
    held.close()
