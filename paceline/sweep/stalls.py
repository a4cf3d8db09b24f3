"""Windows in which a trial stood still by accident: found by their own trial, and left out of what is compared.

A window is stalled if it is far slower than the others of its trial (another process took the cores, a disk hung). One in twenty that
takes twice as long makes a trial 5 % slower, more than most differences that a sweep is after, and says nothing about the case. Trials are
reported over true wall time; the comparison, and what follows from it, does without these windows, and only where they are accidents:
- a trial in which many windows are slow is taken as it is, and so are all trials if most of them stalled;
- a case that stalls in nearly all of its trials, or whose windows stall more often than those of the others, does it by itself, and pays
  for it in full.
    find_stalls(results)     -> [frozenset(), frozenset({7}), …]: for each trial, which of its windows do not count
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from paceline.sweep.evidence import TrialResult

_SLOW = 0.15
"""log; less is no stall, whatever the others of its trial do: a case may settle slowly"""
_FAR = 6.0
"""deviations of the trial's windows"""
_NORMAL = 1.4826
"""deviations of normal numbers in median distances of theirs"""
_MOST = 0.25
"""of a trial's windows: more are no accidents"""
_NEARLY_ALL = 0.75
"""of a case's trials, two at least: stalls in more of them are its own"""
_CHANCE = 0.001
"""that a case stalls so often by accident; below, it pays"""


def find_stalls(results: Sequence[TrialResult]) -> list[frozenset[int]]:
    """For each trial, the windows that stalled by accident."""
    stalled = [_slow_windows(result.windows) for result in results]
    if sum(bool(found) for found in stalled) > len(results) / 2:
        return [frozenset()] * len(results)
    seen, slow, trials, struck = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for result, found in zip(results, stalled, strict=True):
        seen[result.case] += len(result.windows)
        slow[result.case] += len(found)
        trials[result.case] += 1
        struck[result.case] += bool(found)
    always = {case for case in slow if struck[case] >= 2 and struck[case] > _NEARLY_ALL * trials[case]}
    guilty = always | {case for case in slow if _is_guilty(case, seen, slow)}
    return [frozenset() if result.case in guilty else found for result, found in zip(results, stalled, strict=True)]


def _slow_windows(windows: Sequence[float]) -> frozenset[int]:
    """Those far slower than the others of their trial; none, if they are many."""
    if not windows or min(windows) <= 0:
        return frozenset()
    paces = [math.log(pace) for pace in windows]
    middle = statistics.median(paces)
    spread = _NORMAL * statistics.median(abs(pace - middle) for pace in paces)
    found = frozenset(index for index, pace in enumerate(paces) if pace < middle - max(_FAR * spread, _SLOW))
    return found if len(found) <= _MOST * len(windows) else frozenset()


def _is_guilty(case: str, seen: Counter[str], slow: Counter[str]) -> bool:
    """So many stalls are hardly chance, by the rate at which the other cases stall."""
    if slow[case] < 2:
        return False
    from scipy.special import pdtrc

    rate = (slow.total() - slow[case] + 1) / (seen.total() - seen[case] + 1)
    return bool(pdtrc(slow[case] - 1, rate * seen[case]) < _CHANCE)
