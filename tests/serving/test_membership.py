from __future__ import annotations

import threading

import numpy as np
import pytest

from paceline.serving import membership
from paceline.serving.membership import is_member


@pytest.mark.parametrize("least", [0, -3])
@pytest.mark.parametrize("most", [5, 70_000, 1 << 26])
def test_it_is_what_numpy_says(most: int, least: int) -> None:
    random = np.random.default_rng(most)
    for _ in range(20):
        values = random.integers(least, most, (random.integers(0, 200), 3))
        members = random.integers(least, most, random.integers(0, 50))
        assert (is_member(values, members) == np.isin(values, members)).all()


def test_no_mark_is_left() -> None:
    is_member(np.array([1, 2]), np.array([2, 9]))
    assert not is_member(np.arange(20), np.array([19]))[:19].any()
    assert not is_member(np.array([0, -(1 << 40)]), np.array([3])).any()
    with pytest.raises(IndexError):
        is_member(np.array([0.5]), np.array([3.5]))
    assert not is_member(np.arange(20), np.array([19]))[:19].any()


def test_threads_do_not_see_each_others_marks() -> None:
    wrong = []

    def ask(own: int) -> None:
        for _ in range(300):
            if is_member(np.arange(5000), np.array([own])).sum() != 1:
                wrong.append(own)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_large_numbers_cost_no_table() -> None:
    is_member(np.array([1 << 31]), np.array([5]))
    assert len(getattr(membership._kept, "marks", ())) <= membership._MOST_MARKS
