from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.telemetry.stack_file import answer_requests, catches, find_answerer

RANK = """
import signal, sys, time
from pathlib import Path
from paceline.telemetry.stack_file import answer_requests
before = sys.argv[2]
if before == "ignored":
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
elif before == "taken":
    signal.signal(signal.SIGUSR1, lambda *_: None)
file = answer_requests(Path(sys.argv[1]), rank=3, attempt=2)
def hang():
    print(file is not None, flush=True)
    time.sleep(60)
hang()
"""


def start(path: Path, before: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", RANK, str(path), before], stdout=subprocess.PIPE, text=True)


def test_a_process_says_that_it_answers_and_does(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "stacks_rank_00003.txt"
    assert find_answerer(path) is None
    with start(path) as process:
        assert process.stdout.readline() == "True\n"
        assert find_answerer(path) == process.pid
        assert catches(Path(f"/proc/{process.pid}/status").read_text())
        assert not catches(Path(f"/proc/{process.pid}/status").read_text(), signal.SIGUSR2)
        os.kill(process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + 20
        while "in hang" not in path.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert find_answerer(path) == process.pid, "its stacks do not hide it"
        process.kill()
    with open(path, "a") as file:
        file.write("\n== pid 7 answers no more ==\n")
    assert find_answerer(path) is None


def test_stacks_that_a_kill_cut_off_do_not_hide_who_answers_next(tmp_path: Path) -> None:
    path = tmp_path / "stacks_rank_00003.txt"
    path.write_text(
        '== rank 3, attempt 1, pid 7 answers ==\nCurrent thread 0x0007 (most recent call first):\n  File "<str'
    )
    with start(path) as process:
        assert process.stdout.readline() == "True\n"
        assert find_answerer(path) == process.pid
        process.kill()


def test_a_signal_that_means_something_already_is_left_alone(tmp_path: Path) -> None:
    for before in ("ignored", "taken"):
        with start(tmp_path / before, before) as process:
            assert process.stdout.readline() == "False\n"
            assert not (tmp_path / before).exists()
            process.kill()


def test_without_room_there_are_no_stacks_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    assert answer_requests(tmp_path / "logs" / "stacks.txt", 0, 1) is None


def test_an_offer_can_be_taken_back_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulthandler.unregister(signal.SIGUSR1)  # a loop with the SDK that ran in this process answers until it ends
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    path = tmp_path / "stacks.txt"
    file = answer_requests(path, 0, 1)
    assert file is not None
    assert find_answerer(path) == os.getpid()
    file.check_handler()
    assert find_answerer(path) == os.getpid(), "it is still ours"
    signal.signal(signal.SIGUSR1, lambda *_: None)
    monkeypatch.setattr(os, "write", lambda *_: os.stat("/nowhere"))
    try:
        file.check_handler()
    finally:
        signal.signal(signal.SIGUSR1, before)
        faulthandler.unregister(signal.SIGUSR1)
    assert find_answerer(path) is None
