from __future__ import annotations

import os

import pytest

from paceline.errors import UsageError
from paceline.telemetry.sdk.ranks import Rank, find_rank

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_RESTART_COUNT": "3",
}


def test_one_process_is_rank_0_of_1() -> None:
    assert find_rank(environ={}) == find_rank(environ={"RANK": "0", "WORLD_SIZE": "1"}) == Rank(0, 1, "", True)


def test_ranks_of_one_start_have_the_same_launch_and_others_do_not() -> None:
    one = find_rank(environ=TORCHRUN)
    assert (one.rank, one.world_size, one.is_one_host) == (1, 2, True)
    assert one.launch == f"a:29500, x, restart 3, started by process {os.getppid()}"
    assert find_rank(environ=TORCHRUN | {"RANK": "0"}).launch == one.launch
    assert find_rank(environ=TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "4"}).launch != one.launch


@pytest.mark.parametrize(
    ("change", "is_one_host"),
    [
        ({"LOCAL_WORLD_SIZE": "1"}, False),
        ({"LOCAL_WORLD_SIZE": None}, False),
        ({"LOCAL_WORLD_SIZE": None, "MASTER_ADDR": "localhost"}, True),
        ({"LOCAL_WORLD_SIZE": None, "MASTER_ADDR": None}, True),
        ({"LOCAL_WORLD_SIZE": None, "MASTER_ADDR": None, "SLURM_JOB_NUM_NODES": "2"}, False),
    ],
)
def test_shared_memory_is_counted_on_only_where_all_ranks_see_it(change: dict, is_one_host: bool) -> None:
    environ = {name: value for name, value in (TORCHRUN | change).items() if value is not None}
    found = find_rank(environ=environ)
    assert found.is_one_host == is_one_host
    # Ranks on another host have another parent.
    assert ("started by" in found.launch) == is_one_host


def test_what_is_given_comes_before_the_environment() -> None:
    assert find_rank(0, 3, TORCHRUN).world_size == 3


@pytest.mark.parametrize("given", [(2, 2), (-1, 2)])
def test_a_rank_beyond_the_others_is_refused(given: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="no place among ranks"):
        find_rank(*given, environ={})


def test_half_a_place_is_refused_by_the_name_of_the_other_half() -> None:
    for given, missing in (((1, None), "world_size is missing: rank=1"), ((None, 2), "rank is missing: world_size=2")):
        with pytest.raises(UsageError, match=missing):
            find_rank(*given, environ={})
    for environ, missing in (
        ({"RANK": "0"}, "WORLD_SIZE is missing: RANK=0"),
        ({"WORLD_SIZE": "2"}, "RANK is missing: WORLD_SIZE=2"),
    ):
        with pytest.raises(UsageError, match=missing):
            find_rank(environ=environ)
