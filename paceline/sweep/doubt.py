"""What a sweep that is over did not tell apart, in plain words, and what would.

find_doubt(ranking, settings)     -> Doubt(rivals=("a", "b"), repeats=27, sentence="not decided: c is the front of 3 cases …")
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.sweep.evidence import RaceSettings
from paceline.sweep.power import repeats_for
from paceline.sweep.ranking import Ranking

_NAMED = 3
_KNOWN = 1.0
"""degrees of freedom without which nothing follows from the noise"""


@dataclass(frozen=True)
class Doubt:
    """Why the case in front is no winner."""

    rivals: tuple[str, ...]
    """that may be better, the most likely first"""
    repeats: int | None
    """whole trials of each that would tell the nearest one; None: the noise is not known"""
    sentence: str


def find_doubt(ranking: Ranking, settings: RaceSettings) -> Doubt | None:
    """None: nobody leads, or nobody may be better than who does."""
    leader, rivals, comparison = ranking.leader, ranking.rivals, ranking.comparison
    if leader is None or not rivals or comparison is None:
        return None
    shown = ", ".join(rivals[:_NAMED]) + (f" and {len(rivals) - _NAMED} more" if len(rivals) > _NAMED else "")
    hardly = sum(comparison.trials.get(case, 0) < 2 for case in (leader, *rivals))
    said = (
        f"not decided: {leader} is the front of {len(rivals) + 1} cases that were not told apart (the others: {shown})"
    )
    said += f"; {hardly} of them had one trial or none" if hardly else ""
    apart = [abs(comparison.difference(case, leader)[0]) for case in rivals if case in comparison.effects]
    if comparison.freedom < _KNOWN or not apart:
        return Doubt(rivals, None, said)
    # Nearer than what a plan is meant to see, nobody can promise; and every pair of cases has its share of the error.
    effect = max(min(apart), settings.effect)
    pairs = max(len(ranking.order) * (len(ranking.order) - 1), 1)
    wanted = repeats_for(effect, comparison.noise, settings.power, 1 - (1 - settings.confidence) / pairs)
    had = min(comparison.trials.get(case, 0) for case in (leader, *rivals))
    if wanted <= had:
        return Doubt(
            rivals, None, said
        )  # the looks that a race takes have their price, too: it is not known what would do
    said += f"; under {comparison.noise:.1%} noise it takes about {wanted:,} trials of each to tell {effect:.1%}"
    return Doubt(rivals, wanted, said)
