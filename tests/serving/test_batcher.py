"""Requests of many threads in one batch, each with its own answer or its own failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.errors import UsageError
from paceline.serving.batcher import Batcher, OverloadedError

pytestmark = pytest.mark.timeout(30)


def squares(requests: Sequence[int]) -> list[int]:
    if any(request < 0 for request in requests):
        raise ValueError("below zero")
    return [request * request for request in requests]


def test_answers_go_to_who_asked() -> None:
    batcher = Batcher(squares, max_batch=4, max_wait_ms=5)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda each: batcher.ask(each, 20), range(200))) == [n * n for n in range(200)]
    batcher.close()
    assert sum(size * count for size, count in batcher.sizes.items()) == 200
    assert max(batcher.sizes) <= 4
    assert max(batcher.sizes) > 1, "eight threads at once, and never two together"


def test_only_the_guilty_one_fails() -> None:
    batcher = Batcher(squares, max_batch=4, max_wait_ms=2000)
    futures = [batcher.submit(request) for request in (1, -2, 3, 4)]
    assert isinstance(futures[1].exception(20), ValueError)
    assert [future.result(20) for future in (futures[0], *futures[2:])] == [1, 9, 16]
    assert batcher.sizes == {4: 1}
    batcher.close()


def test_a_wrong_number_of_answers_is_an_error() -> None:
    batcher: Batcher[int, int] = Batcher(lambda requests: [1, 2], max_batch=1)
    with pytest.raises(ValueError, match="2 answers to 1"):
        batcher.ask(1, 20)
    batcher.close()


def test_a_full_batch_does_not_wait() -> None:
    batcher = Batcher(squares, max_batch=2, max_wait_ms=60_000)
    futures = [batcher.submit(1), batcher.submit(2)]
    assert [future.result(20) for future in futures] == [1, 4]
    batcher.close()


def test_late_callers_go_and_are_left_out() -> None:
    gate, asked = threading.Event(), []

    def answer(requests: Sequence[int]) -> list[int]:
        asked.extend(requests)
        gate.wait(20)
        return list(requests)

    batcher = Batcher(answer, max_batch=1, max_wait_ms=0, most_waiting=2)
    first = batcher.submit(1)
    while not asked:
        time.sleep(0.001)
    with pytest.raises(TimeoutError, match="no answer within 10 ms"):
        batcher.ask(2, 0.01)
    third = batcher.submit(3)
    with pytest.raises(OverloadedError):
        batcher.submit(4)
    gate.set()
    assert (first.result(20), third.result(20)) == (1, 3)
    assert asked == [1, 3], "nobody waited for 2 any more"
    batcher.close()
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(5)


@pytest.mark.parametrize("wrong", [{"max_batch": 0}, {"max_wait_ms": -1}, {"most_waiting": 0}])
def test_sizes_that_are_none(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Batcher(squares, **wrong)
