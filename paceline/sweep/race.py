"""What a driver asks of whoever decides which trial comes next: a race of all cases, or a search that ends in one.

next() -> a trial, or None where it is decided or waits; observe(result); ranking() -> how all cases stand
"""

from __future__ import annotations

from typing import Protocol

from paceline.sweep.evidence import Assignment, TrialResult
from paceline.sweep.ranking import Ranking


class Race(Protocol):
    """The same results in the same order lead to the same trials: a driver that was killed hands over what its ledger has."""

    def next(self) -> Assignment | None: ...
    def observe(self, result: TrialResult) -> None: ...
    def ranking(self) -> Ranking: ...
    def full_repeats(self) -> int: ...
