"""Who may still be the best of a race, and what it takes until each of them has trials enough to say so.

With few cases or repeats a share of the grid is a trial or two of each case, by which the luckiest leads. So the front-runners have a
few whole trials each even where that is more than the race's share, up to half of the grid; who is clearly behind has no part in it.
    plan_finals(ranking, hopes, whole={"a": 1}, price={"a": 13.2, …}, within=40.0, most=180.0)     -> ["a", "b", "d"]
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from paceline.sweep.kinship import Hope
from paceline.sweep.ranking import Ranking

_ENOUGH = 4
"""whole trials of each (docs/racing.md, small sweeps: what 3 and no limit gave)"""
_NEAR = 2.0
"""standard errors that a front-runner may be behind the leader"""
_MOST = 6
FINALS = _ENOUGH * _MOST
"""whole trials that the finals of a race may take"""


def plan_finals(
    ranking: Ranking,
    hopes: Mapping[str, Hope],
    whole: Mapping[str, int],
    price: Mapping[str, float],
    within: float,
    most: float,
) -> list[str]:
    """Who runs next, the leader first; nobody where the race's share pays for it.

    `whole`: trials so far, `price`: of another one, `within`: what is left of the race's share, `most`: what is left at all.
    """
    leader = ranking.leader
    assert leader is not None
    first = hopes[leader]
    behind = {
        case: (first.effect - hopes[case].effect) / max(math.hypot(first.error, hopes[case].error), 1e-9)
        for case in (*ranking.contenders, *ranking.suspects)
        if case in hopes and ranking.verdicts[case].complete
    }
    near = sorted((case for case in behind if behind[case] < _NEAR), key=lambda case: behind[case])
    finalists = [leader, *near][:_MOST]
    missing = {case: max(_ENOUGH - whole.get(case, 0), 0) for case in finalists}
    required = sum(count * price[case] for case, count in missing.items())
    if required <= within:
        return []
    running = list[str]()
    for case in finalists:
        # The leader runs with them: who is compared with it needs its neighbour in time.
        if not missing[case] and case != leader:
            continue
        most -= price[case]
        if most < 0:
            break
        running.append(case)
    return running if len(running) > 1 else []
