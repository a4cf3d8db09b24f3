"""The pace of a run: how long each phase takes, learned from readings of the pulses, and how long it may take.

A step of 5 ms is invisible to somebody who looks four times a second. But a pulse adds up the seconds of each phase by its own clock, so
two readings and the steps between them tell the pace all the same; no clock of one host is ever compared with that of another.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from paceline.diagnose.limits import EARLY, FAR_FACTOR, FAR_FLOORS, NEVER_LEARNED, PATIENCE, RARE, UNDECLARED, Limits
from paceline.diagnose.pauses import Pauses
from paceline.telemetry.pulse import Pulse

_KEPT = 512
"""durations of a phase, the longest at each of the newest looks; of fewer than a hundred the 99th percentile is the longest"""
_KNOWN, _SURE = 3, 5
"""visits of a rare phase from which on its longest duration counts at all, and is trusted as it is"""
_AGAIN = 2.0
"""times the longest that was called a stall and ended by itself, before the next one is"""


@dataclass
class _History:
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    by_rank: Counter[int] = field(default_factory=Counter)
    """how often each rank has been in it, where that is rare enough to count"""
    longest: float = 0.0
    """since the last look"""
    p99: float | None = None
    """None: to be computed again"""

    @property
    def visits(self) -> int:
        return max(self.by_rank.values())


class Pace:
    """What is known of how long each phase takes, over all ranks."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._histories: dict[str, _History] = {}
        self._pauses = Pauses(limits)
        self._ended: dict[str, float] = {}
        """phase -> the longest that was called a stall, and was none"""

    def learn(self, before: Pulse, now: Pulse, held_s: float, stood_s: float = 0.0) -> None:
        """From two readings of one rank. `held_s`: how long after the first the second was taken; `stood_s`: for how long of that the rank
        was seen not to move."""
        steps = max(1, now.step - before.step)
        if not now.spent_s:
            if steps == 1 and held_s > 0:
                self._add(before.phase, before.rank, held_s)
            return
        for phase, total_s in now.spent_s.items():
            spent = total_s - before.spent_s.get(phase, 0.0)
            if phase == UNDECLARED == before.phase and stood_s > self._usual_s(phase):
                self._pauses.add(stood_s)
                spent -= stood_s  # kept out of what is usual
            if spent > 0:
                # The mean over the steps between: a lower bound of the longest, and near it where steps are long enough to matter.
                self._add(phase, now.rank, spent if phase in RARE else spent / steps)

    def forgive(self, phase: str, stood_s: float) -> None:
        """A rank that was said to have stalled went on by itself: the next such pause, of the next epoch say, is expected.

        The 99th percentile cannot know: it forgets what is rare, and a look after it sees the pause spread over many steps.
        """
        if phase != UNDECLARED:
            self._ended[phase] = max(self._ended.get(phase, 0.0), stood_s)

    def end_look(self) -> None:
        """All ranks have been looked at. One duration for all of them: else many ranks would forget in seconds what a few remember."""
        for history in self._histories.values():
            if history.longest:
                history.durations.append(history.longest)
                history.longest, history.p99 = 0.0, None

    def p99(self, phase: str) -> float | None:
        """Seconds; None: never seen, up to the last look."""
        history = self._histories.get(phase)
        if history is None or not history.durations:
            return None
        if history.p99 is None:
            ordered = sorted(history.durations)
            history.p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        return history.p99

    def limit(self, phase: str) -> float:
        """Seconds after which a rank that is still in this phase has stalled."""
        usual_s = self._usual_s(phase)
        return self._pauses.limit_s(usual_s) if phase == UNDECLARED else max(usual_s, self._expected_s(phase))

    def act_limit(self, phase: str) -> float:
        """Seconds after which a policy may act on it: to be told of a stall in vain is cheap, to be killed is not."""
        return max(self.limit(phase), PATIENCE.get(phase, 0.0) * self._limits.without_history(phase))

    def far_limit(self, phase: str) -> float:
        """Seconds after which it is an emergency that ranks wait in it, perhaps for one that only others can see: who sees it, acts first."""
        return max(FAR_FACTOR * self.act_limit(phase), FAR_FLOORS * self._limits.stall_floor_s)

    def notice_limit(self, phase: str) -> float:
        """Seconds after which it is worth a word: earlier than that where a pause may be anything."""
        usual_s = self._usual_s(phase)
        return self._pauses.notice_s(usual_s) if phase == UNDECLARED else max(usual_s, self._expected_s(phase))

    def explain_limit(self, phase: str) -> str:
        """Where the limit comes from, for a person."""
        act_s = self.act_limit(phase)
        patience = f"; a policy acts after {act_s:.3g} s" if act_s > self.limit(phase) else ""
        return self._explain_source(phase) + patience

    def _explain_source(self, phase: str) -> str:
        limit, p99 = self.limit(phase), self.p99(phase)
        if p99 is None:
            return f"{limit:.0f} s, for a first {phase}"
        if phase in self._ended and limit == self._expected_s(phase):
            return f"{limit:.3g} s, {_AGAIN:.3g} × the longest {phase} that ended by itself"
        if phase == UNDECLARED or not self._is_known(phase) or limit <= self._floor_s:
            return f"{limit:.3g} s; 99 % of {phase} take less than {p99:.3g} s"
        return f"{limit:.3g} s, {limit / p99:.3g} × the 99th percentile of {phase}, {p99:.3g} s"

    def _usual_s(self, phase: str) -> float:
        p99 = self.p99(phase)
        first = self._limits.without_history(phase)
        if p99 is None:
            return first
        learned = max(self._floor_s, self._limits.stall_factor * p99 * self._caution(phase))
        return learned if self._is_known(phase) else max(first, learned)

    def _expected_s(self, phase: str) -> float:
        return _AGAIN * self._ended.get(phase, 0.0)

    @property
    def _floor_s(self) -> float:
        return self._limits.stall_floor_s * EARLY

    def _is_known(self, phase: str) -> bool:
        """Whether its history says anything about the next one: a first save may have had nothing to save."""
        return phase not in NEVER_LEARNED and (phase not in RARE or self._histories[phase].visits >= _KNOWN)

    def _caution(self, phase: str) -> float:
        """Three evaluations do not tell everything about the next: more is allowed, less with each that follows."""
        if phase not in RARE:
            return 1.0
        visits = self._histories[phase].visits
        return 1 + 2 / visits if visits < _SURE else 1.0

    def _add(self, phase: str, rank: int, seconds: float) -> None:
        history = self._histories.get(phase)
        if history is None:
            history = self._histories[phase] = _History()
        if seconds > history.longest:
            history.longest = seconds
        if phase in RARE:
            history.by_rank[rank] += 1
