"""Weighs blocks of steps: who is slower than the other ranks by its waits, by how long it is idle, and in which phase it loses the time.

    weighing = Weighing([0, 1, 2])
    weighing.add(block); weighing.findings()   -> [Finding("straggler", rank=1, cause="forward", …)]

The same for blocks that come from the pulses of a running run (stragglers.py) and from the tables it has written (imbalance.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.diagnose.blocks import Block
from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.limits import STEP_PHASES
from paceline.diagnose.standing import name_ranks
from paceline.diagnose.suspicion import LEAST_EXCESS, Suspicion
from paceline.telemetry.pulse import OWN_PHASES

ERROR = 0.005
"""the most of all clean runs in which anybody is called a straggler, as far as blocks are independent"""
_KEPT = 80
_SHOWN = 6
"""blocks that a finding's numbers are made of: doubt may have begun before the trouble did"""
_IDLE_ERROR, _LONG_ERROR = 0.2, 0.2
"""of all errors: waits need them more"""
_LONG = 4
"""blocks in a long one: what is small beside the noise of a few steps is not beside that of many"""
_EXPLAINED = 0.4
"""of what a rank loses: a phase that has less of it is not the cause"""
_AGREED = 0.3
"""of the time that a rank is idle, by which the others at least have to wait longer: else it is idle because it waits for somebody"""
_CURES = {
    "data": "look at what it reads from, its disk and its loader processes; paceline bench loader CONFIG says what the loader can bring",
    "forward": "look at its GPU or cores: clocks, temperature, another process on them",
    "backward": "look at its GPU or cores: clocks, temperature, another process on them",
    "optimizer": "look at its cores and memory: another process on them",
    "elsewhere": "look at its GPU (clocks, temperature, another process) and at what its host does besides",
}


class Weighing:
    """Of the same ranks, block after block."""

    def __init__(self, ranks: Iterable[int], error: float = ERROR) -> None:
        self._ranks = set(ranks)
        self.hosts: Mapping[int, str] = {}
        """rank -> where it runs, as far as that is known"""
        self._blocks: deque[Block] = deque(maxlen=_KEPT)
        self._by_wait = Suspicion(self._ranks, (1 - _IDLE_ERROR - _LONG_ERROR) * error)
        self._by_idle = Suspicion(self._ranks, _IDLE_ERROR * error)
        self._by_long_wait = Suspicion(self._ranks, _LONG_ERROR * error)
        self._long: list[Block] = []

    def add(self, block: Block) -> None:
        self._blocks.append(block)
        self._by_wait.add(block.excess, block.steps)
        if block.idle:
            self._by_idle.add(block.idle, block.steps)
        self._long.append(block)
        if len(self._long) == _LONG:
            means = {rank: sum(each.excess[rank] for each in self._long) / _LONG for rank in block.excess}
            self._by_long_wait.add(means, sum(each.steps for each in self._long))
            self._long.clear()

    def accused(self) -> dict[int, int]:
        """Who is a straggler by now, and in how many blocks up to now that has been in doubt."""
        idle = [rank for rank in self._by_idle.accused if self._delays_others(rank)]
        doubts = {rank: _LONG * self._by_long_wait.blocks_of_doubt(rank) for rank in self._by_long_wait.accused}
        doubts |= {rank: self._by_wait.blocks_of_doubt(rank) for rank in self._by_wait.accused}
        return doubts | {rank: self._by_idle.blocks_of_doubt(rank) for rank in idle}

    def findings(self) -> list[Finding]:
        doubts = self.accused()
        if not doubts:
            return []
        recent = list(self._blocks)[-min(_SHOWN, max(doubts.values())) :]
        slow_hosts = self._find_slow_hosts(list(doubts), recent)
        found = [self._report_host(host, ranks, recent) for host, ranks in slow_hosts.items()]
        alone = [rank for rank in doubts if not any(rank in ranks for ranks in slow_hosts.values())]
        return found + [self._report_rank(rank, recent) for rank in alone]

    def _delays_others(self, rank: int) -> bool:
        """Whether the others wait for it while it is idle."""
        blocks = [block for block in self._blocks if block.idle][-self._by_idle.blocks_of_doubt(rank) :]
        return sum(block.without_queues(rank) - _AGREED * block.idle[rank] for block in blocks) >= 0

    def _find_slow_hosts(self, guilty: Sequence[int], recent: Sequence[Block]) -> dict[str, list[int]]:
        """Hosts of several ranks, all of which are slow, one of them surely."""
        by_host: dict[str, list[int]] = {}
        for rank, host in self.hosts.items():
            by_host.setdefault(host, []).append(rank)
        if len(by_host) < 2:
            return {}
        slow = {rank for rank in self._ranks if sum_up([rank], recent).excess > LEAST_EXCESS}
        return {
            host: sorted(ranks)
            for host, ranks in by_host.items()
            if len(ranks) > 1 and set(ranks) <= slow and set(ranks) & set(guilty)
        }

    def _report_rank(self, rank: int, recent: Sequence[Block]) -> Finding:
        loss = sum_up([rank], recent)
        witnesses = _ask_pulses(rank, recent, loss)
        said = "; ".join(witness.said for witness in witnesses)
        return Finding(
            "straggler",
            f"rank {rank} makes every step {loss.excess:.0%} longer: {loss.describe()}; {said}",
            loss.cure(),
            cause=loss.cause,
            rank=rank,
            host=self.hosts.get(rank),
            phase=loss.cause if loss.cause != "elsewhere" else None,
            step=recent[-1].last_step,
            witnesses=witnesses,
            numbers=loss.numbers(),
        )

    def _report_host(self, host: str, ranks: Sequence[int], recent: Sequence[Block]) -> Finding:
        loss = sum_up(ranks, recent)
        said = f"all of {name_ranks(tuple(ranks))} wait less than the ranks of other hosts"
        return Finding(
            "slow_host",
            f"host {host} makes every step {loss.excess:.0%} longer: {loss.describe()}; {said}",
            f"look at {host} as a whole: its clocks, its cooling, what else runs there; paceline preflight on it",
            cause=loss.cause,
            ranks=tuple(ranks),
            host=host,
            step=recent[-1].last_step,
            witnesses=(Witness("wait", True, said),),
            numbers=loss.numbers(),
        )


@dataclass(frozen=True)
class Loss:
    """What a rank, or a host, costs the run."""

    excess: float
    """of a step without it"""
    step_ms: float
    lost_ms: Mapping[str, float]
    """in each phase, more than the others"""
    is_idle: bool
    """it does nothing meanwhile"""

    @property
    def cause(self) -> str:
        """The phase in which most is lost, if that explains it; on a GPU the host's clock often sees nothing of it."""
        phase = max(self.lost_ms, key=lambda name: self.lost_ms[name])
        return phase if phase != "step" and self.lost_ms[phase] >= _EXPLAINED * self.total_ms else "elsewhere"

    @property
    def total_ms(self) -> float:
        return self.step_ms * self.excess / (1 + self.excess)

    def describe(self) -> str:
        if self.cause == "elsewhere":
            return f"it loses {self.total_ms:.3g} ms in none of the phases that the host's clock sees"
        return f"it loses {self.lost_ms[self.cause]:.3g} ms in {self.cause}"

    def cure(self) -> str:
        if self.is_idle and self.cause not in ("data", "elsewhere"):
            return "it waits there for something of its own (a device, a disk, a lock): paceline diagnose RUN --stacks shows where"
        return _CURES[self.cause]

    def numbers(self) -> dict[str, float]:
        lost = {f"lost_{name}_ms": ms for name, ms in self.lost_ms.items()}
        return {"excess": self.excess, "step_ms": self.step_ms, **lost}


def _ask_pulses(rank: int, recent: Sequence[Block], loss: Loss) -> tuple[Witness, ...]:
    told = [block.waits_ms for block in recent if block.waits_ms]
    if not told:
        return (Witness("pulse", True, "nobody tells how long it waits; only the time for its data is compared"),)
    waits = {each: median(block[each] for block in told) for each in told[-1]}
    others = median(wait for each, wait in waits.items() if each != rank)
    said = f"it waits {waits[rank]:.3g} ms a step for the others, they {others:.3g} ms"
    by_wait = Witness("wait", waits[rank] < others, said)
    if not loss.is_idle:
        return (by_wait,)
    idle_ms = sum(loss.lost_ms.values())
    return by_wait, Witness("pulse", True, f"it is idle {idle_ms:.3g} ms a step longer than they are")


def sum_up(ranks: Sequence[int], recent: Sequence[Block]) -> Loss:
    """By how long they were idle, where that says it, because it says it best; else by how long each phase took."""

    def lost_in(phase: str, measure: Callable[[Block, int, str], float]) -> float:
        return median(median(measure(block, rank, phase) for block in recent) for rank in ranks)

    step_ms = median(block.step_ms for block in recent)
    if all(block.idle for block in recent):
        idle = median(median(block.idle[rank] for block in recent) for rank in ranks)
        if idle > LEAST_EXCESS:
            lost_ms = {phase: lost_in(phase, Block.idled_ms) for phase in OWN_PHASES}
            return Loss(idle, step_ms, lost_ms, is_idle=True)
    excess = median(median(block.excess[rank] for block in recent) for rank in ranks)
    return Loss(excess, step_ms, {phase: lost_in(phase, Block.lost_ms) for phase in STEP_PHASES}, is_idle=False)
