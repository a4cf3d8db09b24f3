"""Who slows the others down: power and false alarms over simulated runs, and what is not held against anybody."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.diagnose.sight import RankSight, Sight
from paceline.diagnose.stragglers import Stragglers
from paceline.diagnose.suspicion import Suspicion, weigh_beginning
from paceline.telemetry.pulse import Pulse
from tests.diagnose.simulated import World, simulate

FIRST_SEED = 7_000
CLEAN = [
    World(world_size=2),
    World(world_size=4),
    World(world_size=4, step_ms=200, num_steps=200),
    World(world_size=2, step_ms=5, num_steps=2000),
    World(world_size=2, jitter=0.12, pauses=0.03),
    World(world_size=4, jitter=0.15, pauses=0.05),
    World(world_size=3, jitter=0.02, pauses=0.0),
    World(world_size=4, jitter=0.02, every=10, step_ms=20, num_steps=1000),
]
POWER = [
    World(world_size=2, slow=(1,), excess=0.10, phase="data", num_steps=320),
    World(world_size=4, slow=(3,), excess=0.10, phase="forward", num_steps=320),
    World(world_size=4, slow=(0,), excess=0.10, phase="backward", step_ms=200, num_steps=320),
    World(world_size=3, slow=(2,), excess=0.25, phase="data", num_steps=320),
    World(world_size=2, slow=(0,), excess=1.00, phase="forward", num_steps=320),
    World(world_size=4, slow=(2,), excess=0.20, phase="forward", jitter=0.02, every=10, num_steps=320),
]


def false_alarms(worlds: list[World], repeats: int) -> list[str]:
    alarms = []
    for world in worlds:
        for seed in range(FIRST_SEED, FIRST_SEED + repeats):
            found, _ = simulate(world, seed)
            alarms += [f"{world}, seed {seed}, step {step}: {finding.what}" for step, finding in found]
    return alarms


def test_clean_runs_with_ordinary_noise_accuse_nobody() -> None:
    assert false_alarms(CLEAN, 15) == []


@pytest.mark.slow
def test_less_than_one_clean_run_in_a_hundred_accuses_somebody() -> None:
    alarms = false_alarms(CLEAN, 100)
    print(f"seeds {FIRST_SEED} to {FIRST_SEED + 99}: {len(alarms)} of {100 * len(CLEAN)} clean runs")
    assert len(alarms) < len(CLEAN), alarms


@pytest.mark.parametrize("world", POWER, ids=lambda world: f"{world.excess:.0%} in {world.phase}")
def test_a_straggler_is_found_with_its_phase(world: World) -> None:
    steps = []
    for seed in range(FIRST_SEED, FIRST_SEED + 12):
        found, _ = simulate(world, seed)
        assert {finding.rank for _, finding in found} == set(world.slow), f"seed {seed}"
        (step, finding), *_ = found
        steps.append(step - world.from_step)
        assert finding.cause == world.phase, f"seed {seed}: {finding.what}"
        assert 0.4 * world.excess < finding.numbers["excess"] < 1.8 * world.excess, f"seed {seed}"
    print(f"steps until found: {sorted(steps)}, seeds {FIRST_SEED} to {FIRST_SEED + 11}")
    assert np.median(steps) <= 50 + 5 * (world.every - 1)


def test_a_slow_host_is_one_finding() -> None:
    found, _ = simulate(World(world_size=8, hosts=2, slow=(4, 5, 6, 7), excess=0.15, num_steps=300), FIRST_SEED)
    (_, finding), *others = found
    assert (finding.kind, finding.host, finding.ranks) == ("slow_host", "host1", (4, 5, 6, 7))
    assert others == []


def pulses_of(step: int, data_s: list[float], waits: int = 0) -> list[Pulse]:
    return [
        Pulse(rank, 1, 1, step, "data", 0.0, 0, 0, waits, 0.0, {"data": step * each, "backward": step * 0.05})
        for rank, each in enumerate(data_s)
    ]


def test_ranks_that_do_not_tell_their_waits_are_compared_by_their_data_alone() -> None:
    watcher, found = Stragglers(), []
    for step in range(1, 400, 4):
        pulses = pulses_of(step, [0.01, 0.03, 0.0101, 0.0099])
        sights = tuple(RankSight(each.rank, "a", each, None) for each in pulses)
        found = watcher.see(Sight(step, step, 1, 4, sights))
    assert [(finding.rank, finding.cause) for finding in found] == [(1, "data")]
    assert "only the time for its data" in found[0].witnesses[0].said


def test_a_rank_that_recovers_is_forgiven() -> None:
    slow = World(world_size=2, slow=(1,), excess=0.3, num_steps=300, from_step=50)
    found, holding = simulate(slow, FIRST_SEED)
    assert found
    assert [finding.rank for finding in holding] == [1]
    found, holding = simulate(replace(slow, to_step=200), FIRST_SEED)
    assert found
    assert holding == []


def test_missing_or_foreign_pulses_accuse_nobody() -> None:
    watcher = Stragglers()
    for step in range(1, 200, 4):
        pulses = pulses_of(step, [0.01, 0.03])
        sights = [RankSight(0, "a", pulses[0], None), RankSight(1, "a", replace(pulses[1], attempt=2), None)]
        assert watcher.see(Sight(step, step, 1, 2, tuple(sights))) == []
        assert watcher.see(Sight(step, step, 1, 2, (RankSight(0, "a", None, None),))) == []
        assert watcher.see(Sight(step, step, 1, 2, ())) == []


def test_the_weights_of_all_beginnings_add_up_to_one() -> None:
    """What bounds the error: a martingale for each beginning, and no more of them than one in all."""
    assert 0.999 < sum(map(weigh_beginning, range(1, 2000))) <= 1


def test_a_run_whose_ranks_are_often_loud_needs_more_to_accuse_one() -> None:
    quiet, loud = Suspicion(range(3), 0.005), Suspicion(range(3), 0.005)
    for suspicion, reached in ((quiet, 0), (loud, 40)):
        suspicion._num_blocks, suspicion._reached = 100, [reached] * 3
    assert quiet._clean_rates(0) == [0.18, 0.05, 0.02]
    assert [round(rate, 3) for rate in loud._clean_rates(0)] == [0.2, 0.14, 0.098]
