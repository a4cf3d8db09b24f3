"""Whom the kernel holds back because a CPU quota is used up: it counts that time itself, so no noise has to be overcome.

What waits tell of a slow rank is what is left after everybody's noise; of a quota the kernel tells the cause. One rank that is held back is
named; of ranks that share groups it is said once; and where all are held back, it is their container's limit, and said of the host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.sight import RankSight, Sight
from paceline.diagnose.standing import name_ranks
from paceline.diagnose.suspicion import LEAST_EXCESS

_STEPS = 25
"""over which it is measured, and in both halves of which it has to show: a save or an evaluation of one rank alone passes"""
_LEAST_S, _RANK_S = 0.5, 1 / 8
"""at least, and for each rank: of many ranks the kernel is asked less often"""
_SILENT_S, _SILENT = 2.0, 0.25
"""seconds, and share of the time it was measured over, after which a rank that makes no steps is not slowed down by a quota: it does
something else, or nothing"""
_CURE = "raise the CPU limit of its container or group (cpu.max, docker --cpus, resources.limits.cpu), or use fewer threads and loader processes"

_Seen = tuple[float, int, float]
"""when, at which step, held back for how many seconds so far"""


class QuotaWatch:
    """Follows the ranks on this host."""

    def __init__(self) -> None:
        self._attempt: int | None = None
        self._groups: dict[int, str] = {}
        self._history: dict[int, deque[_Seen]] = {}

    def see(self, sight: Sight) -> list[Finding]:
        """Who is held back at this moment."""
        if sight.attempt != self._attempt:
            self._attempt, self._groups, self._history = sight.attempt, {}, {}
        for seen in sight.ranks:
            self._follow(seen, sight.monotonic)
        shares = {rank: self._share_of(of_rank, sight.monotonic) for rank, of_rank in self._history.items()}
        held_back = {rank: share for rank, share in shares.items() if share >= LEAST_EXCESS}
        if not held_back:
            return []
        here = {seen.rank: seen for seen in sight.ranks if seen.process is not None and seen.pulse is not None}
        # A group has one counter: what one of its ranks has shown holds for all of them, also for who was looked at later.
        of_group: dict[str, float] = {}
        for rank, share in held_back.items():
            of_group[self._groups[rank]] = max(share, of_group.get(self._groups[rank], 0.0))
        members: dict[str, list[int]] = {group: [] for group in of_group}
        for rank, seen in here.items():
            if seen.process is not None and seen.process.group in members:
                members[seen.process.group].append(rank)
        alone = [ranks[0] for ranks in members.values() if len(ranks) == 1]
        together = {rank: of_group[group] for group, ranks in members.items() if len(ranks) > 1 for rank in ranks}
        if len(alone) + len(together) == len(here) > 1:
            everybody = together | {rank: of_group[self._groups[rank]] for rank in alone}
            return [self._report_ranks(everybody, here[min(here)].host, severity="note")]
        found = [self._report_rank(here[rank], of_group[self._groups[rank]]) for rank in alone]
        if together:
            found.append(self._report_ranks(together, here[min(together)].host, severity="warning"))
        return found

    def _follow(self, seen: RankSight, now: float) -> None:
        held = seen.process.held_back_s if seen.process is not None else None
        if held is None or seen.process is None or seen.pulse is None or seen.pulse.step < 1:
            self._history.pop(seen.rank, None)
            return
        if self._groups.get(seen.rank) != seen.process.group:
            self._groups[seen.rank] = seen.process.group
            self._history[seen.rank] = deque()
        history = self._history.setdefault(seen.rank, deque())
        if history and seen.pulse.step <= history[-1][1]:
            return
        history.append((now, seen.pulse.step, held))
        while len(history) > 2 and self._is_enough(history[1], history[-1]):
            history.popleft()

    def _is_enough(self, first: _Seen, last: _Seen) -> bool:
        least_s = max(_LEAST_S, _RANK_S * len(self._history))
        return last[1] - first[1] >= _STEPS and last[0] - first[0] >= least_s

    def _share_of(self, history: deque[_Seen], now: float) -> float:
        """Of the time, the smaller of the two halves; 0: not enough is known, or it makes no steps."""
        if len(history) < 3 or not self._is_enough(history[0], history[-1]):
            return 0.0
        first, last = history[0], history[-1]
        whole = _share_between(first, last)
        if whole < LEAST_EXCESS or now - last[0] > max(_SILENT_S, _SILENT * (last[0] - first[0])):
            return 0.0
        middle = min(list(history)[1:-1], key=lambda each: abs(each[1] - (first[1] + last[1]) / 2))
        return min(_share_between(first, middle), _share_between(middle, last))

    def _report_rank(self, seen: RankSight, share: float) -> Finding:
        assert seen.process is not None
        assert seen.pulse is not None
        said = f"its group {seen.process.group} was held back {share:.0%} of the time"
        return Finding(
            "throttled",
            f"rank {seen.rank} has used up its CPU quota: {said}",
            _CURE,
            cause="quota",
            rank=seen.rank,
            host=seen.host,
            step=seen.pulse.step,
            witnesses=(Witness("kernel", True, said),),
            numbers={"held_back": share},
        )

    def _report_ranks(self, shares: Mapping[int, float], host: str, *, severity: str) -> Finding:
        least = min(shares.values())
        groups = {group for group in map(self._groups.get, shares) if group is not None}
        whose = f"their group {min(groups)} was" if len(groups) == 1 else "their groups were"
        said = f"{whose} held back {least:.0%} of the time{' or more' if len(groups) > 1 else ''}"
        ranks = tuple(sorted(shares))
        return Finding(
            "throttled",
            f"{name_ranks(ranks)} have used up their CPU quota: {said}",
            _CURE,
            severity=severity,
            cause="quota",
            ranks=ranks,
            host=host,
            witnesses=(Witness("kernel", True, said),),
            numbers={"held_back": least},
        )


def _share_between(first: _Seen, last: _Seen) -> float:
    return (last[2] - first[2]) / (last[0] - first[0])
