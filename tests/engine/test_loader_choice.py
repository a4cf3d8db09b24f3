from __future__ import annotations

import pytest

from paceline.config.sections import Data
from paceline.engine.loader_choice import LoaderFacts, choose_num_workers, choose_timeout, find_idle


def facts(**changes) -> LoaderFacts:
    usual = {"is_placed": False, "is_heavy": True, "has_gpu": True, "cores": 32, "local_ranks": 8}
    return LoaderFacts(**(usual | changes))


@pytest.mark.parametrize(
    ("requested", "changes", "effective", "because"),
    [
        ("auto", {}, 3, "32 cores // 8 ranks = 4 each, one of them for training"),
        ("auto", {"local_ranks": 1}, 8, "at most 8"),
        ("auto", {"cores": 8}, 1, "8 cores // 8 ranks = 1 each"),
        ("auto", {"has_gpu": False, "local_ranks": 2}, 4, "a quarter of them"),
        ("auto", {"has_gpu": False, "cores": 2, "local_ranks": 2}, 1, "at least 1"),
        ("auto", {"is_heavy": False}, 0, "light"),
        ("auto", {"is_placed": True}, 0, "live on the device"),
        (5, {"is_placed": True}, 0, "live on the device"),
        (5, {"is_heavy": False}, 5, "as requested"),
        (0, {}, 0, "as requested"),
    ],
)
def test_processes(requested, changes, effective, because):
    number, reason = choose_num_workers(requested, facts(**changes))
    assert number == effective
    assert because in reason


def test_a_rank_gives_up_on_its_loader_before_the_others_give_up_on_the_rank():
    assert choose_timeout(Data(), 600) == (300, "half of parallel.timeout_s=600")
    assert choose_timeout(Data(loader_timeout_s=7), 600) == (7, "as requested")
    assert choose_timeout(Data(loader_timeout_s=None), 600) == (None, "as requested")


def test_what_means_nothing_without_loader_processes():
    without = ["data.prefetch", "data.loader_timeout_s"]
    assert [key for key, _ in find_idle("auto", 0, "light", is_placed=False)] == without
    assert [key for key, _ in find_idle("auto", 0, "placed", is_placed=True)] == [*without, "data.pin_memory"]
    assert [*find_idle(0, 0, "as requested", is_placed=False)] == [], "the configuration alone tells that"
    assert [*find_idle("auto", 2, "heavy", is_placed=False)] == []
