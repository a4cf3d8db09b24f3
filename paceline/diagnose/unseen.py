"""What may be said while some ranks cannot be seen from here, because they are on another host: who only waits, waits perhaps for them.

A supervisor of one of several hosts sees its own ranks, and the one that all pulses come to sees everybody, unless a host has fallen
silent. Whoever does not see everybody accuses only a rank that is stuck by itself, outside of what ranks do together; of ranks that wait
it says that they do, and calls that an emergency only long after the one who sees everybody has named the culprit.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.sight import Sight
from paceline.diagnose.standing import Standing, describe_places, name_ranks

OTHER_HOST = "other_host"
"""cause of a stall whose culprit, if there is one, cannot be seen from here"""
_OWN_WORK = frozenset({"data", "compile", "profile"})
"""phases in which no rank waits for another"""


def is_stuck_alone(standing: Standing, seen: Sequence[Standing]) -> bool:
    """Whether it is proven, by what can be seen here, that it waits for nobody: it has begun no collective that has not ended, and does its
    own work, or a forward that another rank here has left behind (a sharded model gathers its parts in there, of all ranks alike)."""
    pulse = standing.pulse
    if pulse is None or pulse.collectives_enqueued > pulse.collectives_completed:
        return False
    return standing.phase in _OWN_WORK or (
        standing.phase == "forward" and any(other.place > standing.place for other in seen)
    )


def report_waiting(
    seen: Sequence[Standing], unseen: Sequence[Standing], sight: Sight, limit_s: float, far_limit_s: float
) -> Finding:
    """Of ranks that all stand still, none of them proven guilty. `far_limit_s`: from when on it is an emergency all the same."""
    held_s = min(standing.held_s for standing in seen)
    silent_s = max((standing.silent_s for standing in unseen), default=0.0)
    there = name_ranks([standing.rank for standing in unseen])
    hosts = sorted({standing.host for standing in unseen})
    where = f"{there} of {'host' if len(hosts) == 1 else 'hosts'} {', '.join(hosts)}"
    said = f"{describe_places(list(seen))}, unchanged for {held_s:.1f} s"
    news = (
        f"of {where} nothing has been heard for {silent_s:.1f} s" if silent_s else f"{where} cannot be seen from here"
    )
    return Finding(
        "stall",
        f"waiting, perhaps for a rank of another host: {said}; {news}",
        f"ask where all ranks are seen, on the host that owns the run, and look at {', '.join(hosts)}: paceline diagnose RUN",
        severity="critical" if held_s >= far_limit_s else "note",
        cause=OTHER_HOST,
        host=hosts[0] if silent_s and len(hosts) == 1 else None,
        phase=seen[0].phase,
        step=seen[0].step,
        since=sight.time - held_s,
        witnesses=(Witness("pulse", True, said),),
        numbers={"held_s": held_s, "limit_s": limit_s, "act_s": far_limit_s},
    )
