"""Which rank slows the others down: the one that waits least, step after step.

A step takes equally long on all ranks, because all-reduce makes them wait for each other; what differs is how long each of them waits.
A rank's excess is how much less it waited than the median of the others, as a share of the step; of a block of five steps the median
counts, so that a pause says nothing. A block speaks against a rank if its excess is over 4 %, and the louder the more it is above this run's
own noise. In a clean run loud blocks are rare; of a straggler nearly all are loud. The evidence is the likelihood ratio of the two, summed
over every block at which the trouble may have begun, with weights that add up to one: such a sum exceeds 1/a with a probability of at most
a, however long the run is looked at (Ville's inequality), as far as blocks are independent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from paceline.diagnose.blocks import STEP_PHASES, Block, Collector, Noise
from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.sight import Sight
from paceline.diagnose.standing import name_ranks
from paceline.telemetry.pulse import Pulse

ERROR = 0.005
"""the most of all clean runs in which anybody is called a straggler, as far as blocks are independent"""
LEAST_EXCESS = 0.04
"""of a step: whoever loses less than that is no straggler"""
_LEVELS = (1.0, 2.0, 3.0)
"""how loudly a block speaks against a rank: its excess in units of the noise"""
_P_CLEAN = (0.18, 0.05, 0.02)
_P_STRAGGLER = (0.92, 0.72, 0.42)
"""how often at least so much happens: in a clean run (or as often as it does to the other ranks of this run), and to a straggler"""
_KEPT = 80
_RANK_S = 1 / 64
"""of a second between two blocks, for each rank: many ranks need more time to compare, and have more to tell"""
_LEAST_STEPS = 25
_NOISY_STEPS = 200
"""steps that have to speak against a rank, and how many more for a noise of the size of a step: who is slow once is no straggler, and on
a loaded machine everybody is, now and then, for a while"""
_CAP = 50.0
"""times the threshold: a rank that has recovered is forgiven after a few blocks"""
_CURES = {
    "data": "look at what it reads from (its disk, its loader processes: paceline bench loader)",
    "forward": "look at its GPU or cores: clocks, temperature, another process on them",
    "backward": "look at its GPU or cores: clocks, temperature, another process on them",
    "optimizer": "look at its cores and memory: another process on them",
    "elsewhere": "look at its GPU (clocks, temperature, another process) and at what its host does besides",
}


@dataclass
class _Suspect:
    """What speaks against one rank."""

    evidence: float = 0.0
    """likelihood ratio, summed over the blocks at which it may have begun"""
    blocks: int = 0
    steps: int = 0
    """since the evidence was last in its favour"""
    reached: list[int] = field(default_factory=lambda: [0] * len(_LEVELS))
    """blocks that reached each level"""

    def add(self, bet: tuple[float, float, float], steps: int) -> None:
        ratio, weight, most = bet
        self.evidence = min(most, (self.evidence + weight) * ratio)
        is_doubtful = self.evidence > weight
        self.blocks = self.blocks + 1 if is_doubtful else 0
        self.steps = self.steps + steps if is_doubtful else 0


class Stragglers:
    """Follows how long each rank waits for the others."""

    def __init__(self, error: float = ERROR) -> None:
        self._error = error
        self._attempt: int | None = None
        self._compared = 0.0
        self._hosts: dict[int, str] = {}
        self._restart({})

    def see(self, sight: Sight) -> list[Finding]:
        """Who is a straggler at this moment."""
        pulses = {
            seen.rank: seen.pulse
            for seen in sight.ranks
            if seen.pulse is not None and seen.pulse.attempt == sight.attempt and seen.pulse.step > 0
        }
        if sight.attempt != self._attempt or pulses.keys() != self._suspects.keys():
            is_same = sight.attempt == self._attempt and pulses.keys() < self._suspects.keys()
            if not is_same:  # a reading that failed once says nothing; another set of ranks is another comparison
                self._attempt = sight.attempt
                self._restart(pulses)
            return self._findings()
        self._hosts = {seen.rank: seen.host for seen in sight.ranks}
        if len(pulses) >= 2 and sight.monotonic - self._compared >= _RANK_S * len(pulses):
            self._compared = sight.monotonic
            for block in self._collector.add(pulses):
                self._weigh(block)
        return self._findings()

    def _restart(self, pulses: Mapping[int, Pulse]) -> None:
        self._collector = Collector(pulses)
        self._noise = Noise()
        self._blocks: deque[Block] = deque(maxlen=_KEPT)
        self._num_blocks = 0
        self._suspects = {rank: _Suspect() for rank in pulses}
        self._reached = [0] * len(_LEVELS)

    def _weigh(self, block: Block) -> None:
        noise = self._noise.size
        self._blocks.append(block)
        self._noise.add(block)
        if noise is None:
            return
        self._num_blocks += 1
        weight = weigh_beginning(self._num_blocks)
        levels = {rank: _grade(excess, noise) for rank, excess in block.excess.items()}
        for rank, level in levels.items():
            ratio = _likelihood_ratio(level, self._clean_rates(rank))
            self._suspects[rank].add((ratio, weight, _CAP * self._threshold), block.steps)
        for rank, level in levels.items():
            for reached in range(level):
                self._suspects[rank].reached[reached] += 1
                self._reached[reached] += 1

    def _clean_rates(self, rank: int) -> list[float]:
        """How often at least each level comes about without a straggler: as assumed, or as seen of the other ranks of this run."""
        num = self._num_blocks * (len(self._suspects) - 1)
        own, rates = self._suspects[rank].reached, list[float]()
        for level, assumed in enumerate(_P_CLEAN):
            seen = (self._reached[level] - own[level]) / num
            rates.append(min(max(assumed, seen), rates[-1] * 0.7 if rates else 0.5))
        return rates

    @property
    def _threshold(self) -> float:
        return max(1, len(self._suspects)) / self._error

    def _findings(self) -> list[Finding]:
        least_steps = _LEAST_STEPS + _NOISY_STEPS * (self._noise.size or 0.0)
        guilty = [
            rank
            for rank, suspect in self._suspects.items()
            if suspect.evidence >= self._threshold and suspect.steps >= least_steps
        ]
        if not guilty:
            return []
        recent = list(self._blocks)[-max(self._suspects[rank].blocks for rank in guilty) :]
        slow_hosts = self._find_slow_hosts(guilty, recent)
        found = [self._report_host(host, ranks, recent) for host, ranks in slow_hosts.items()]
        alone = [rank for rank in guilty if not any(rank in ranks for ranks in slow_hosts.values())]
        return found + [self._report_rank(rank, recent) for rank in alone]

    def _find_slow_hosts(self, guilty: Sequence[int], recent: Sequence[Block]) -> dict[str, list[int]]:
        """Hosts of several ranks, all of which are slow, one of them surely."""
        by_host: dict[str, list[int]] = {}
        for rank, host in self._hosts.items():
            by_host.setdefault(host, []).append(rank)
        if len(by_host) < 2:
            return {}
        slow = {rank for rank in self._suspects if median(block.excess[rank] for block in recent) > LEAST_EXCESS}
        return {
            host: sorted(ranks)
            for host, ranks in by_host.items()
            if len(ranks) > 1 and set(ranks) <= slow and set(ranks) & set(guilty)
        }

    def _report_rank(self, rank: int, recent: Sequence[Block]) -> Finding:
        excess, step_ms, lost = _sum_up([rank], recent)
        cause, lost_ms = _name_cause(lost, excess, step_ms)
        witness = _ask_waits(rank, recent)
        return Finding(
            "straggler",
            f"rank {rank} makes every step {excess:.0%} longer: {_describe_loss(cause, lost_ms)}; {witness.said}",
            _CURES[cause],
            cause=cause,
            rank=rank,
            host=self._hosts.get(rank),
            phase=cause if cause != "elsewhere" else None,
            step=recent[-1].last_step,
            witnesses=(witness,),
            numbers={"excess": excess, "step_ms": step_ms} | {f"lost_{name}_ms": ms for name, ms in lost.items()},
        )

    def _report_host(self, host: str, ranks: Sequence[int], recent: Sequence[Block]) -> Finding:
        excess, step_ms, lost = _sum_up(ranks, recent)
        cause, lost_ms = _name_cause(lost, excess, step_ms)
        said = f"all of {name_ranks(tuple(ranks))} wait less than the ranks of other hosts"
        return Finding(
            "slow_host",
            f"host {host} makes every step {excess:.0%} longer: {_describe_loss(cause, lost_ms)}; {said}",
            f"look at {host} as a whole: its clocks, its cooling, what else runs there; paceline preflight on it",
            cause=cause,
            ranks=tuple(ranks),
            host=host,
            step=recent[-1].last_step,
            witnesses=(Witness("wait", True, said),),
            numbers={"excess": excess, "step_ms": step_ms} | {f"lost_{name}_ms": ms for name, ms in lost.items()},
        )


def _ask_waits(rank: int, recent: Sequence[Block]) -> Witness:
    told = [block.waits_ms for block in recent if block.waits_ms]
    if not told:
        return Witness("pulse", True, "nobody tells how long it waits; only the time for its data is compared")
    waits = {each: median(block[each] for block in told) for each in told[-1]}
    others = median(wait for each, wait in waits.items() if each != rank)
    return Witness("wait", True, f"it waits {waits[rank]:.3g} ms a step, the others {others:.3g} ms")


def weigh_beginning(number: int) -> float:
    """How likely trouble is to begin at the n-th block, before anything is known: they add up to one."""
    return 1 / (number * (number + 1))


def _grade(excess: float, noise: float) -> int:
    """0: nothing; else the highest level that it reaches."""
    return sum(excess > level * noise for level in _LEVELS) if excess > LEAST_EXCESS else 0


def _likelihood_ratio(level: int, clean: Sequence[float]) -> float:
    """How much likelier a block of this level is with a straggler than without."""
    return _share(level, _P_STRAGGLER) / _share(level, clean)


def _share(level: int, tails: Sequence[float]) -> float:
    return ([1.0, *tails][level]) - ([*tails, 0.0][level])


def _sum_up(ranks: Sequence[int], recent: Sequence[Block]) -> tuple[float, float, dict[str, float]]:
    excess = median(median(block.excess[rank] for block in recent) for rank in ranks)
    step_ms = median(block.step_ms for block in recent)
    lost = {
        phase: median(median(block.lost_ms(rank, phase) for block in recent) for rank in ranks) for phase in STEP_PHASES
    }
    return excess, step_ms, lost


def _name_cause(lost: Mapping[str, float], excess: float, step_ms: float) -> tuple[str, float]:
    """The phase in which most is lost, if that explains it; on a GPU the host's clock often sees nothing of it."""
    phase = max(lost, key=lambda name: lost[name])
    total_ms = step_ms * excess / (1 + excess)
    if phase != "step" and lost[phase] >= 0.4 * total_ms:
        return phase, lost[phase]
    return "elsewhere", total_ms


def _describe_loss(cause: str, lost_ms: float) -> str:
    where = f"in {cause}" if cause != "elsewhere" else "in none of the phases that the host's clock sees"
    return f"it loses {lost_ms:.3g} ms {where}"
