from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool

import pytest

from paceline.recipes.csa import prepare_pool
from paceline.recipes.csa.prepare_pool import work_through
from tests.recipes.csa.tasks import (
    double,
    double_and_ask_for_the_end,
    double_or_die,
    double_slowly,
    fill_up,
    look_around,
)

pytestmark = pytest.mark.timeout(100)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_every_task_has_its_result(workers: int, count: int) -> None:
    results = dict(work_through(double, range(count), workers))
    assert results == {number: 2 * number for number in range(count)}


def test_the_processes_are_others_without_torch_and_deaf_to_ctrl_c() -> None:
    seen = set(dict(work_through(look_around, range(40), 2)).values())
    pids = {pid for pid, _, _ in seen}
    assert os.getpid() not in pids
    assert seen == {(pid, False, False) for pid in pids}
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_task_that_kills_its_process_is_named_and_the_others_are_done() -> None:
    results = dict(work_through(double_or_die, range(60), 2))
    assert results == {number: None if number == 21 else 2 * number for number in range(60)}


def test_what_could_not_be_handed_over_to_a_broken_pool_is_done_all_the_same(monkeypatch) -> None:
    submit, calls = prepare_pool._Pool.submit, []

    def break_once(*arguments):
        calls.append(arguments)
        if len(calls) == 3:  # a process died while nobody waited for it
            raise BrokenProcessPool
        return submit(*arguments)

    monkeypatch.setattr(prepare_pool._Pool, "submit", break_once)
    results = dict(work_through(double, range(60), 2))
    assert results == {number: 2 * number for number in range(60)}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_ends_it_all(workers: int) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        list(work_through(fill_up, range(50), workers))
    assert str(caught.value.filename).startswith("file-")


@pytest.fixture
def as_a_command() -> Iterator[None]:
    """Signals as the command line has them, and a thread besides, as a progress bar has one: it takes what the main thread blocks."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield
    over.set()
    thread.join()
    for number, handler in zip(numbers, before, strict=True):
        assert signal.signal(number, handler) is signal.default_int_handler, "it is put back"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("as_a_command")
def test_the_end_is_asked_for_while_a_process_is_started(
    number: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    spawn, pids = multiprocessing.util.spawnv_passfds, []

    def spawn_and_ask(path: bytes, words: list[str], *rest: object) -> int:
        pid = spawn(path, words, *rest)
        if any("spawn_main" in str(word) for word in words):  # it is there, and has not been told yet what it is
            pids.append(pid)
            os.kill(os.getpid(), number)
        return pid

    monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", spawn_and_ask)
    with pytest.raises(KeyboardInterrupt):
        list(work_through(double, range(60), 3))
    for pid in pids:
        with pytest.raises(ChildProcessError):  # it has been waited for
            os.waitpid(pid, 0)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("as_a_command")
def test_whoever_asks_twice_does_not_wait(workers: int, capfd: pytest.CaptureFixture[str]) -> None:
    # What another test has started may live until it is collected.
    others = set(multiprocessing.active_children())

    def ask_twice() -> None:
        # One worker is this process.
        while workers > 1 and len(set(multiprocessing.active_children()) - others) < workers:
            time.sleep(0.01)
        for _ in range(2):
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=ask_twice).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(work_through(double_slowly, range(60), workers))
    assert time.monotonic() - began < 30, "a task takes 60 s"
    assert set(multiprocessing.active_children()) <= others
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("as_a_command")
def test_alone_a_task_is_finished_before_it_ends() -> None:
    done: list[tuple[int, int | None]] = []
    with pytest.raises(KeyboardInterrupt):
        done.extend(work_through(double_and_ask_for_the_end, range(60), 1))
    assert done == [(0, 0), (1, 2), (2, 4), (3, 6)]


@pytest.mark.usefixtures("as_a_command")
def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert len(list(work_through(double_and_ask_for_the_end, range(20), 1))) == 20
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
