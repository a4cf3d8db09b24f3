"""A table of ranks and the verdict on it, from tables of times that are made up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from paceline.diagnose.imbalance import Imbalance, judge_timing

Table = list[dict[str, Any]]


def tables(
    world_size: int,
    *,
    slow: int | None = None,
    phase: str = "forward",
    more_ms: float = 0.0,
    windows: int = 60,
    steps: int = 10,
    noise: float = 0.02,
    first_slow: int = 0,
    last_slow: int = 10_000,
    seed: int = 3,
    waits: bool = True,
) -> dict[int, Table]:
    """Steps of 100 ms, each rank's own; whoever is done waits for the last one."""
    chance = random.Random(seed)
    found: dict[int, Table] = {rank: [] for rank in range(world_size)}
    for window in range(windows):
        own = [
            {name: ms * chance.gauss(1, noise) for name, ms in (("data", 5), ("forward", 35), ("backward", 50))}
            for _ in range(world_size)
        ]
        if slow is not None and first_slow <= window < last_slow:
            own[slow][phase] += more_ms
        last = max(sum(phases.values()) for phases in own)
        for rank, phases in enumerate(own):
            wait_ms = last - sum(phases.values()) + 1
            times = {f"{name}_ms": ms for name, ms in phases.items()} | {"optimizer_ms": 9.0}
            times |= {"backward_ms": phases["backward"] + wait_ms, "step_ms": last + 10}
            row = {"step": (window + 1) * steps, "window_steps": steps, **times}
            found[rank].append(row | {"wait_ms": wait_ms if waits else None, "wait_steps": steps})
    return found


@pytest.mark.parametrize("phase", ["data", "forward", "backward"])
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_a_slow_rank_is_named_with_its_phase_and_by_how_much(world_size: int, phase: str) -> None:
    found = judge_timing(tables(world_size, slow=1, phase=phase, more_ms=20), world_size)
    (slow,) = found.slow
    assert (found.verdict, slow.rank, slow.phase) == ("slow", 1, phase)
    assert slow.lost_ms == pytest.approx(20, abs=2)
    assert slow.excess == pytest.approx(0.2, abs=0.03)
    assert slow.windows == 60, "also those in which the noise is learned"
    assert slow.last_step == 600
    assert found.sentence.startswith("rank 1 makes a step ")
    assert f"in {phase} (in {slow.windows} of 60 windows, steps {slow.first_step} to 600)" in found.sentence


def test_the_table_tells_own_time_from_waiting() -> None:
    found = judge_timing(tables(3, slow=2, more_ms=20), 3)
    assert [each.rank for each in found.ranks] == [0, 1, 2]
    assert [each.forward_ms for each in found.ranks] == pytest.approx([35, 35, 55], abs=1)
    assert [each.backward_ms for each in found.ranks] == pytest.approx([50, 50, 50], abs=1)
    assert [each.data_ms for each in found.ranks] == pytest.approx([5, 5, 5], abs=0.2)
    assert found.ranks[2].wait_ms == pytest.approx(1, abs=0.5)
    assert found.ranks[0].wait_ms == pytest.approx(21, abs=2)
    assert {each.step_ms for each in found.ranks} == {found.ranks[0].step_ms}
    assert [each.excess > 0.1 for each in found.ranks] == [False, False, True]


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_ranks_that_do_alike_are_even_within_a_figure(world_size: int) -> None:
    for seed in range(10):
        found = judge_timing(tables(world_size, seed=seed), world_size)
        assert (found.verdict, found.slow, found.num_windows) == ("even", (), 60)
        assert found.within is not None
        assert 0 < found.within < 0.04
        assert found.sentence.startswith(f"even within {found.within:.1%} of a step")
        assert "60 windows, steps 1 to 600" in found.sentence


def test_what_cannot_be_told_is_not_called_even() -> None:
    noisy = judge_timing(tables(2, noise=0.3, windows=12), 2)
    assert noisy.verdict == "open"
    assert noisy.within is not None
    assert noisy.within > 0.04
    short = judge_timing(tables(2, windows=3), 2)
    assert short.verdict == "open", "three windows prove nothing, however alike they are"
    assert "more steps or a quieter machine" in short.sentence


def test_a_rank_that_was_slow_for_a_while_is_named_with_that_while() -> None:
    found = judge_timing(tables(2, slow=0, more_ms=30, first_slow=20, last_slow=40), 2)
    (slow,) = found.slow
    assert (slow.rank, slow.phase) == (0, "forward")
    assert 15 <= slow.windows <= 30
    assert 180 <= slow.first_step <= 221
    assert 400 <= slow.last_step <= 480


def test_one_rank_has_nothing_to_compare_and_a_missing_table_is_said() -> None:
    assert judge_timing({}, 1) == Imbalance("alone", "one rank: there is nothing to compare")
    whole = tables(3)
    del whole[1]
    lost = judge_timing(whole, 3)
    assert lost.verdict == "unknown"
    assert "there are no times of rank 1" in lost.sentence
    apart = tables(2)
    for row in apart[1]:
        row["step"] += 1
    assert "no window was timed by all ranks" in judge_timing(apart, 2).sentence


def test_windows_that_a_compiler_took_and_first_ones_without_waits_are_left_out() -> None:
    given = tables(2, windows=30)
    given[1][4]["step_ms"] = None
    given[0][0]["wait_ms"] = None
    assert judge_timing(given, 2).num_windows == 28


def test_rows_of_single_steps_make_windows_as_the_watchdog_has_them() -> None:
    found = judge_timing(tables(2, slow=1, more_ms=20, windows=300, steps=1), 2)
    assert (found.num_windows, found.verdict) == (60, "slow")


def test_a_strategy_that_does_not_tell_its_waits_is_judged_by_data_alone() -> None:
    even = judge_timing(tables(2, waits=False), 2)
    assert even.verdict == "even"
    assert "by the time for data alone" in even.sentence
    assert even.ranks[0].wait_ms is None
    (slow,) = judge_timing(tables(2, waits=False, slow=1, phase="data", more_ms=20), 2).slow
    assert (slow.rank, slow.phase) == (1, "data")
