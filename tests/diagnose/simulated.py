"""A simulated run: ranks with noise of many kinds, seen four times a second, as pulses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.diagnose.finding import Finding
from paceline.diagnose.sight import RankSight, Sight
from paceline.diagnose.stragglers import Stragglers
from paceline.telemetry.pulse import OWN_PHASES, Pulse

SHARES = {"data": 0.1, "forward": 0.35, "backward": 0.45, "optimizer": 0.1}


@dataclass(frozen=True)
class World:
    """How a simulated run behaves."""

    world_size: int = 4
    num_steps: int = 400
    step_ms: float = 60.0
    jitter: float = 0.05
    """standard deviation of a rank's own time of a step, as a share of it"""
    pauses: float = 0.01
    """of the steps of a rank are longer by up to ten times"""
    load: float = 0.0
    """size of a slow drift of its own in every rank: another program comes and goes"""
    load_steps: float = 20.0
    """how long such a drift lasts"""
    queues: float = 0.0
    """of a step, that a rank is ready to run and gets no core, in the mean: as when ranks share cores; and they tell so"""
    loaders: float = 0.0
    """of a step, that every rank is idle in data, in the mean, for a loader that comes and goes"""
    communication: float = 0.1
    slow: tuple[int, ...] = ()
    excess: float = 0.0
    """of a step, by which the slow ranks are slower"""
    phase: str = "forward"
    from_step: int = 100
    to_step: int | None = None
    hosts: int = 1
    every: int = 1
    """steps of which one tells how long a rank waits, as on a GPU"""


def _wander(world: World, random: np.random.Generator, size: float) -> np.ndarray:
    """Of every rank at every step: it comes and goes, slowly."""
    keep = np.exp(-1 / world.load_steps)
    drift = np.zeros((world.num_steps, world.world_size))
    shocks = random.normal(0, size * np.sqrt(1 - keep**2), drift.shape)
    for step in range(1, world.num_steps):
        drift[step] = keep * drift[step - 1] + shocks[step]
    return drift


def simulate(world: World, seed: int) -> tuple[list[tuple[int, Finding]], list[Finding]]:
    """(step at which it was seen, finding) of every finding, first time each; and those that hold at the end."""
    random = np.random.default_rng(seed)
    steps, ranks = world.num_steps, world.world_size
    scale = np.exp(random.normal(0, world.jitter, (steps, ranks)))
    paused = random.random((steps, ranks)) < world.pauses
    scale += paused * random.uniform(1, 10, (steps, ranks))
    if world.load:
        scale += np.abs(_wander(world, random, world.load))
    slow_ms = np.zeros((steps, ranks))
    slow_ms[world.from_step : world.to_step, list(world.slow)] = world.excess * world.step_ms
    # The whole machine has more to do, or less; which rank gets a core is chance.
    crowd = np.exp(_wander(world, random, 0.3)[:, :1])
    queued_ms = world.queues * world.step_ms * crowd * random.exponential(1.0, (steps, ranks))
    loaders_ms = world.loaders * world.step_ms * random.exponential(np.exp(_wander(world, random, 0.3)))
    own_ms = scale * world.step_ms + slow_ms + queued_ms + loaders_ms
    # A pause is a disk's, as often as it is another program's.
    hiccups_ms = paused * (random.random((steps, ranks)) < 0.5) * (scale - 1) * world.step_ms
    idle_ms = np.zeros((steps, ranks, len(OWN_PHASES)))
    idle_ms[:, :, 0] = loaders_ms + hiccups_ms
    if world.phase in OWN_PHASES:
        idle_ms[:, :, OWN_PHASES.index(world.phase)] += slow_ms
    # What is counted by clocks is never exact.
    told_own_ms = np.maximum(1e-6, np.dstack([idle_ms, queued_ms]) + random.normal(0, 0.1, (steps, ranks, 4)))
    lasts_ms = own_ms.max(axis=1)
    communication_ms = world.communication * world.step_ms * np.exp(random.normal(0, 0.2, steps))
    waits_ms = lasts_ms[:, None] - own_ms + communication_ms[:, None]
    ends = np.cumsum(lasts_ms + communication_ms) / 1000
    told_ms = waits_ms[:: world.every]
    waited = np.vstack([np.zeros(ranks), np.cumsum(told_ms, axis=0)])
    spent = {}
    for phase, share in SHARES.items():
        of_phase = (scale * world.step_ms + queued_ms) * share + (slow_ms if phase == world.phase else 0)
        if phase == "backward":
            of_phase = of_phase + waits_ms
        spent[phase] = np.vstack([np.zeros(ranks), np.cumsum(of_phase, axis=0)]) / 1000
    watcher, found, seen = Stragglers(), [], set()
    holding: list[Finding] = []
    for moment in np.arange(0.25, ends[-1], 0.25):
        done = np.searchsorted(ends, moment)
        # A wait is read a little later than the step ends, and not on all ranks at the same moment.
        counts = np.maximum(0, done - random.integers(0, 2, ranks))
        told = -(-counts // world.every)
        pulses = [
            Pulse(
                rank, 1, 1, int(count) + 1, "forward", 0.0, 0, 0, int(waits), float(waited[waits, rank]),
                {phase: float(table[count, rank]) for phase, table in spent.items()}, int(count),
                tuple(told_ms[max(0, waits - 64) : waits, rank].tolist()),
                tuple(told_own_ms[max(0, waits - 64) : waits, rank].ravel().tolist()) if world.queues else (),
            )
            for rank, (count, waits) in enumerate(zip(counts, told, strict=True))
        ]  # fmt: skip
        per_host = ranks // world.hosts
        sights = tuple(RankSight(each.rank, f"host{each.rank // per_host}", each, None) for each in pulses)
        holding = watcher.see(Sight(float(moment), float(moment), 1, ranks, sights))
        for finding in holding:
            if (*finding.subject, finding.host) not in seen:
                seen.add((*finding.subject, finding.host))
                found.append((int(done), finding))
    return found, holding
