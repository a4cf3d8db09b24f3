"""Pauses that nobody declared: a loop that tells no phases, or a script without a pulse, is silent while it evaluates or saves.

That looks like a hang, and nothing tells the two apart. So a pause is noticed when it is longer than usual, and called a stall only after
an explicit limit. One that ended by itself was none: the next one may be as long before it is noticed again.
"""

from __future__ import annotations

from paceline.diagnose.limits import Limits

_AGAIN = 2.0
"""times the longest pause so far, before the next one is worth a word"""


class Pauses:
    """Of one run."""

    def __init__(self, limits: Limits) -> None:
        self._first_s = limits.without_history("step")
        self._factor = limits.stall_factor
        self._longest_s = 0.0

    def add(self, seconds: float) -> None:
        """One that was longer than usual has ended by itself."""
        self._longest_s = max(self._longest_s, seconds)

    def notice_s(self, usual_s: float) -> float:
        """From when on it is worth a word. `usual_s`: from when on it is longer than usual."""
        return max(usual_s, _AGAIN * self._longest_s)

    def limit_s(self, usual_s: float) -> float:
        """From when on it is a stall."""
        return max(self._first_s, usual_s, self._factor * self._longest_s)
