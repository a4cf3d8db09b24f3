from __future__ import annotations

import os
import signal
from concurrent.futures.process import BrokenProcessPool

import pytest

from paceline.recipes.csa import prepare_pool
from paceline.recipes.csa.prepare_pool import work_through
from tests.recipes.csa.tasks import double, double_or_die, fill_up, look_around

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
    submit, calls = prepare_pool._submit, []

    def break_once(*arguments):
        calls.append(arguments)
        if len(calls) == 3:  # a process died while nobody waited for it
            raise BrokenProcessPool
        return submit(*arguments)

    monkeypatch.setattr(prepare_pool, "_submit", break_once)
    results = dict(work_through(double, range(60), 2))
    assert results == {number: 2 * number for number in range(60)}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_ends_it_all(workers: int) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        list(work_through(fill_up, range(50), workers))
    assert str(caught.value.filename).startswith("file-")
