"""Stacks of many ranks: real texts of both sources, clusters, the odd one, and what it says about an accused rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.stacks import cluster_stacks, parse_main_thread, weigh_stacks

DATA = Path(__file__).parents[1] / "data" / "stacks"
WAITING = (DATA / "faulthandler.txt").read_text()
STOPPED = (DATA / "py-spy.txt").read_text()
LOOPING = """Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f0000000002 (most recent call first):
  File "/srv/mine/data.py", line 17 in decode
  File "/srv/mine/data.py", line 44 in __getitem__
  File "/srv/paceline/engine/step.py", line 88 in run
  File "/srv/paceline/worker/__main__.py", line 44 in <module>
"""


def test_the_main_thread_of_the_last_dump_is_read_from_both_sources() -> None:
    waiting = parse_main_thread(WAITING)
    assert (waiting[0].function, waiting[0].line) == ("_engine_run_backward", 979)
    assert str(waiting[3]) == "backward (paceline/engine/strategies/base.py:73)"
    stopped = parse_main_thread(STOPPED)
    assert str(stopped[0]) == "attend_by_sdpa (paceline/engine/attend.py:71)"
    assert parse_main_thread(WAITING + "\n" + LOOPING)[0].function == "decode"
    later = WAITING.replace('graph.py", line 979 in _engine_run_backward', 'graph.py", line 1 in something_else')
    assert parse_main_thread(WAITING + "\n" + later)[0].function == "something_else"


@pytest.mark.parametrize(
    "text", ["", "no stack: stopped\n", "Thread 0x1 (most recent", "\x00\xff garbage", "Process 1: x\n"]
)
def test_texts_without_a_stack_are_no_stack(text: str) -> None:
    assert parse_main_thread(text) == []
    (cluster,) = cluster_stacks({0: text})
    assert (cluster.frames, cluster.is_odd) == ((), False)


def test_sixty_three_that_wait_are_one_line_and_the_odd_one_comes_first() -> None:
    texts = dict.fromkeys(range(64), WAITING) | {17: LOOPING}
    odd, rest = cluster_stacks(texts)
    assert (odd.ranks, odd.is_odd, odd.waits, odd.place) == ((17,), True, False, "decode (mine/data.py:17)")
    assert (len(rest.ranks), rest.is_odd, rest.waits) == (63, False, True)


def test_of_two_ranks_the_one_that_does_not_wait_is_the_odd_one() -> None:
    odd, rest = cluster_stacks({0: WAITING, 1: STOPPED})
    assert (odd.ranks, odd.is_odd, rest.ranks) == ((1,), True, (0,))
    assert [each.is_odd for each in cluster_stacks({0: LOOPING, 1: STOPPED})] == [False, False]
    assert [each.is_odd for each in cluster_stacks({0: WAITING, 1: WAITING})] == [False]


def test_both_sources_of_one_place_are_one_cluster() -> None:
    spied = "\n".join(
        ["Process 7: python", "Python v3.11.7 (/usr/bin/python3.11)", "", 'Thread 7 (idle): "MainThread"']
        + [
            f"    {each.function} ({each.file.rpartition('site-packages/')[2]}:{each.line})"
            for each in parse_main_thread(WAITING)
        ]
    )
    (cluster,) = cluster_stacks({0: WAITING, 1: spied})
    assert cluster.ranks == (0, 1)


def stall(rank: int | None) -> Finding:
    return Finding(
        "stall", "it stands still", "look", rank=rank, witnesses=(Witness("pulse", rank is not None, "behind"),)
    )


def test_stacks_confirm_name_or_correct_the_culprit() -> None:
    clusters = cluster_stacks({0: WAITING, 1: WAITING, 2: LOOPING})
    confirmed = weigh_stacks(stall(2), clusters)
    assert (confirmed.rank, confirmed.witnesses[-1].agrees) == (2, True)
    assert "decode (mine/data.py:17)" in confirmed.what
    named = weigh_stacks(stall(None), clusters)
    assert (named.rank, named.witnesses[-1].name) == (2, "stacks")
    corrected = weigh_stacks(stall(0), clusters)  # it waits, and somebody else does not
    assert (corrected.rank, [each.agrees for each in corrected.witnesses]) == (2, [False, True])
    same = weigh_stacks(stall(1), cluster_stacks({0: WAITING, 1: WAITING}))
    assert (same.rank, same.witnesses[-1].agrees) == (1, False)


def test_one_stack_is_no_witness_nor_are_those_of_the_others_where_a_rank_is_stopped() -> None:
    alone = weigh_stacks(stall(0), cluster_stacks({0: LOOPING}))
    assert (len(alone.witnesses), alone.what) == (1, "it stands still; it is in decode (mine/data.py:17)")
    survivor = weigh_stacks(stall(1), cluster_stacks({0: LOOPING, 1: ""}))
    assert survivor == stall(1)
    for kind in ("stopped", "dead_rank"):
        found = replace(stall(1), kind=kind)
        assert len(weigh_stacks(found, cluster_stacks({0: LOOPING, 1: WAITING, 2: WAITING})).witnesses) == 1
        assert weigh_stacks(found, cluster_stacks({0: WAITING, 2: WAITING})) == found
        odd = weigh_stacks(found, cluster_stacks({0: WAITING, 1: LOOPING, 2: WAITING}))
        assert odd.witnesses[-1].agrees


def test_where_all_wait_the_odd_one_is_in_another_collective() -> None:
    wait = 'Current thread 0x1 (most recent call first):\n  File "/x/torch/distributed/distributed_c10d.py", line {} in {}\n'
    texts = {0: wait.format(1, "all_reduce"), 1: wait.format(2, "barrier"), 2: wait.format(1, "all_reduce")}
    named = weigh_stacks(stall(None), cluster_stacks(texts))
    assert (named.rank, named.cause) == (1, "collective")
    assert weigh_stacks(stall(0), cluster_stacks(texts)).rank == 0
    two = {rank: texts[rank] for rank in (0, 1)}
    assert weigh_stacks(stall(None), cluster_stacks(two)).rank is None  # two against nobody
