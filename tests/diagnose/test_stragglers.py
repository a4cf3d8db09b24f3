"""Who slows the others down: power and false alarms over simulated runs, and what is not held against anybody."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.diagnose.sight import RankSight, Sight
from paceline.diagnose.stragglers import Stragglers
from paceline.telemetry.pulse import Pulse
from tests.diagnose.recorded import see_recorded
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
    World(world_size=2, jitter=0.15, queues=1.0, pauses=0.03),
    World(world_size=4, jitter=0.15, queues=2.0, loaders=0.1),
    World(world_size=3, jitter=0.10, queues=1.0, loaders=0.3, load=0.2),
]
POWER = [
    World(world_size=2, slow=(1,), excess=0.10, phase="data", num_steps=320),
    World(world_size=4, slow=(3,), excess=0.10, phase="forward", num_steps=320),
    World(world_size=4, slow=(0,), excess=0.10, phase="backward", step_ms=200, num_steps=320),
    World(world_size=3, slow=(2,), excess=0.25, phase="data", num_steps=320),
    World(world_size=2, slow=(0,), excess=1.00, phase="forward", num_steps=320),
    World(world_size=4, slow=(2,), excess=0.20, phase="forward", jitter=0.02, every=10, num_steps=320),
]
LOADED = [
    World(world_size=2, slow=(0,), excess=0.25, phase="data", jitter=0.15, queues=1.0, num_steps=220),
    World(world_size=3, slow=(1,), excess=0.25, phase="forward", jitter=0.15, queues=1.0, pauses=0.03, num_steps=220),
    World(world_size=4, slow=(3,), excess=0.50, phase="backward", jitter=0.15, queues=2.0, num_steps=220),
    World(world_size=4, slow=(2,), excess=0.50, phase="forward", jitter=0.15, queues=2.0, loaders=0.1, num_steps=220),
    World(world_size=64, slow=(17,), excess=0.25, phase="data", jitter=0.15, queues=0.2, num_steps=160),
]
"""About 10 % of a step, which waiting for a core makes two or three times as long."""


def false_alarms(worlds: list[World], repeats: int) -> list[str]:
    alarms = []
    for world in worlds:
        for seed in range(FIRST_SEED, FIRST_SEED + repeats):
            found, _ = simulate(world, seed)
            alarms += [f"{world}, seed {seed}, step {step}: {finding.what}" for step, finding in found]
    return alarms


def test_clean_runs_with_ordinary_noise_accuse_nobody() -> None:
    assert false_alarms(CLEAN, 5) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_less_than_one_clean_run_in_a_hundred_accuses_somebody() -> None:
    alarms = false_alarms(CLEAN, 100)
    print(f"seeds {FIRST_SEED} to {FIRST_SEED + 99}: {len(alarms)} of {100 * len(CLEAN)} clean runs", *alarms, sep="\n")
    assert len(alarms) < len(CLEAN), alarms


def find(world: World, repeats: int) -> tuple[list[int], int, list[str]]:
    """Steps until the straggler was found, how often its phase was the right one, and whatever else was said."""
    steps, right, wrong = [], 0, list[str]()
    for seed in range(FIRST_SEED, FIRST_SEED + repeats):
        found, _ = simulate(world, seed)
        mine = [(step, finding) for step, finding in found if finding.rank in world.slow and step >= world.from_step]
        wrong += [f"seed {seed}: {each.what}" for _, each in found if each.rank not in world.slow]
        steps.append(mine[0][0] - world.from_step if mine else world.num_steps)
        right += bool(mine) and mine[0][1].cause == world.phase
    print(f"steps until found: {sorted(steps)}, seeds {FIRST_SEED} to {FIRST_SEED + repeats - 1}; {right} phases right")
    return steps, right, wrong


@pytest.mark.parametrize("world", POWER, ids=lambda world: f"{world.excess:.0%} in {world.phase}")
def test_a_straggler_is_found_with_its_phase(world: World) -> None:
    steps, right, wrong = find(world, 7)
    assert wrong == []
    assert right >= 6
    assert np.median(steps) <= 50 + 5 * (world.every - 1)


@pytest.mark.parametrize("world", LOADED, ids=lambda world: f"{world.world_size} ranks, {world.phase}")
def test_a_rank_that_is_idle_by_itself_is_found_on_an_overloaded_machine(world: World) -> None:
    repeats = 7 if world.world_size < 10 else 1
    steps, right, wrong = find(world, repeats)
    assert wrong == []
    assert right == repeats
    assert max(steps) <= 50


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [*POWER, *LOADED], ids=lambda world: f"{world.excess:.0%} in {world.phase}")
def test_nine_of_ten_stragglers_are_found_with_their_phase(world: World) -> None:
    repeats = 100 if world.world_size < 10 else 10
    steps, right, wrong = find(world, repeats)
    assert len(wrong) <= 1, wrong
    assert right >= 0.9 * repeats
    assert np.quantile(steps, 0.9) <= (50 if world.queues else 100 + 5 * (world.every - 1))


@pytest.mark.parametrize(
    ("name", "phase", "rank", "from_step"),
    [
        ("data-rank-1-of-3", "data", 1, 72),
        ("forward-rank-2-of-4", "forward", 2, 75),
        ("backward-rank-0-of-2", "backward", 0, 66),
    ],
)
def test_ten_per_cent_are_found_in_real_steps_under_load(name: str, phase: str, rank: int, from_step: int) -> None:
    watcher, first = Stragglers(), dict[int | None, tuple[int, str]]()
    for step, sight in see_recorded(name):
        for finding in watcher.see(sight):
            first.setdefault(finding.rank, (step, finding.cause))
    ((named, (step, cause)),) = first.items()
    assert (named, cause) == (rank, phase)
    assert from_step < step <= from_step + 50


@pytest.mark.parametrize("name", ["clean-2-ranks", "clean-4-ranks"])
@pytest.mark.parametrize("tells_own", [True, False])
def test_real_steps_under_load_accuse_nobody(name: str, tells_own: bool) -> None:
    watcher = Stragglers()
    assert [
        finding.what for _, sight in see_recorded(name, tells_own=tells_own) for finding in watcher.see(sight)
    ] == []


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
        sights = [RankSight(0, "a", pulses[0], None), RankSight(1, "a", pulses[1]._replace(attempt=2), None)]
        assert watcher.see(Sight(step, step, 1, 2, tuple(sights))) == []
        assert watcher.see(Sight(step, step, 1, 2, (RankSight(0, "a", None, None),))) == []
        assert watcher.see(Sight(step, step, 1, 2, ())) == []


@pytest.mark.parametrize(("other_waits_ms", "accused"), [(5.0, []), (13.0, [(1, "forward")])])
def test_an_idle_rank_is_accused_only_if_the_others_wait_for_it(other_waits_ms: float, accused: list[object]) -> None:
    """Where forward has a collective of its own, the punctual rank is idle there, and then nobody waits for it."""
    watcher, found = Stragglers(), []
    waits_ms = {0: other_waits_ms, 1: 5.0}
    idle_ms = {0: (0.0, 0.0, 0.0, 0.0), 1: (0.0, 8.0, 0.0, 0.0)}
    for step in range(8, 300, 8):
        spent_s = {"data": 0.01 * step, "forward": 0.03 * step, "backward": 0.04 * step}
        kept = min(64, step)
        pulses = [
            Pulse(
                rank, 1, 1, step + 1, "data", 0.0, 0, 0, step, wait * step, spent_s, step,
                (wait,) * kept, idle_ms[rank] * kept,
            )
            for rank, wait in waits_ms.items()
        ]  # fmt: skip
        sights = tuple(RankSight(each.rank, "a", each, None) for each in pulses)
        found = watcher.see(Sight(step / 8, step / 8, 1, 2, sights))
    assert [(finding.rank, finding.cause) for finding in found] == accused
    assert all([witness.name for witness in finding.witnesses] == ["wait", "pulse"] for finding in found)
