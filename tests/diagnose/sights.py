"""Sights made by hand: a run of a few ranks, moment by moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.diagnose.finding import Finding
from paceline.diagnose.liveness import Liveness
from paceline.diagnose.sight import ProcessSight, RankSight, Sight
from paceline.telemetry.pulse import Pulse

START = 1_794_700_000.0
"""unix time at which every made run begins"""


def pulse(rank: int, step: int, phase: str, **more: object) -> Pulse:
    return Pulse(rank, 1000 + rank, 1, step, phase, START, 0, 0)._replace(**more)  # type: ignore[arg-type]


class Made:
    """A run that a test moves by hand; each `look` is a sight a quarter of a second later."""

    def __init__(self, world_size: int, hosts: Sequence[str] = ("a",)) -> None:
        self.now = 0.0
        self.world_size = world_size
        self.jump_s = 0.0
        """by how much the clocks of the hosts have been set forward"""
        per_host = -(-world_size // len(hosts))
        self.host = {rank: hosts[rank // per_host] for rank in range(world_size)}
        self.pulses: dict[int, Pulse | None] = {rank: pulse(rank, 0, "start") for rank in range(world_size)}
        self.processes: dict[int, ProcessSight | None] = {
            rank: ProcessSight(1000 + rank, "sleeping") for rank in range(world_size)
        }
        self.cores: dict[int, float] = dict.fromkeys(range(world_size), 0.0)

    def move(self, ranks: Sequence[int] | int, step: int, phase: str, **more: object) -> None:
        for rank in [ranks] if isinstance(ranks, int) else ranks:
            old = self.pulses[rank]
            assert old is not None
            spent = dict(old.spent_s)
            spent[old.phase] = spent.get(old.phase, 0.0) + max(0.0, START + self.now + self.jump_s - old.since)
            since = START + self.now + self.jump_s
            self.pulses[rank] = old._replace(step=step, phase=phase, since=since, spent_s=spent, **more)  # type: ignore[arg-type]

    def everybody(self, step: int, phase: str) -> None:
        self.move(range(self.world_size), step, phase)

    def become(self, rank: int, state: str, **more: object) -> None:
        old = self.processes[rank]
        assert old is not None
        self.processes[rank] = replace(old, state=state, **more)  # type: ignore[arg-type]

    def sight(self, order: Sequence[int] | None = None) -> Sight:
        ranks = tuple(
            RankSight(rank, self.host[rank], self.pulses[rank], self.processes[rank])
            for rank in (order if order is not None else range(self.world_size))
        )
        return Sight(START + self.now + self.jump_s, self.now, 1, self.world_size, ranks)

    def wait(self, seconds: float = 0.25) -> None:
        self.now += seconds
        for rank, process in self.processes.items():
            if process is not None:
                self.processes[rank] = replace(process, cpu_s=process.cpu_s + self.cores[rank] * seconds)

    def train(self, steps: int, liveness: Liveness | None = None, step_s: float = 1.0) -> list[Finding]:
        """Some healthy steps: data, forward, backward, optimizer, each with its share of the time."""
        found = []
        first = max(each.step for each in self.pulses.values() if each is not None) + 1
        for step in range(first, first + steps):
            for phase, share in (("data", 0.1), ("forward", 0.3), ("backward", 0.5), ("optimizer", 0.1)):
                self.everybody(step, phase)
                if liveness is not None:
                    found += liveness.see(self.sight())
                self.wait(share * step_s)
        return found

    def watch(self, liveness: Liveness, seconds: float) -> tuple[list[Finding], float | None]:
        """Looks until something is found; what it is, and after how long."""
        began = self.now
        while self.now - began < seconds:
            self.wait()
            found = liveness.see(self.sight())
            if found:
                return found, self.now - began
        return [], None


def names(findings: Sequence[Finding]) -> Mapping[str, int | None]:
    return {finding.kind: finding.rank for finding in findings}
