"""Who holds everybody up: in a hang all ranks stand still, and only one of them has a reason of its own.

All-reduce makes the innocent wait, so time spent tells nothing. What tells: the rank that is behind the others in (step, phase), the one
that computes while the others wait, the one that has not begun a collective which the others have begun, the odd one among many.
Each is a witness; where none speaks, nobody is accused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.diagnose.finding import Witness
from paceline.diagnose.limits import NEVER_LEARNED, RARE, UNDECLARED
from paceline.diagnose.standing import WAITING, Standing, describe_places, find_worker, name_ranks

_ALONE = RARE | NEVER_LEARNED
"""phases that a rank may be in while the others wait for it"""


@dataclass(frozen=True)
class Accusation:
    """Which ranks, with what cause, and who says so; no ranks: nobody can be told from the others."""

    ranks: tuple[int, ...]
    cause: str
    witnesses: tuple[Witness, ...]


def find_behind(standings: Sequence[Standing]) -> list[Standing]:
    """The ranks that are furthest behind; all of them, where all are in one place.

    `step` is no place. Who is in it may be waiting for somebody who evaluates or saves alone, and counts as further on; or does that
    itself before the data of the step that comes, where the others wait for it.
    """
    last = min(standing.place for standing in standings)
    if any(standing.phase != UNDECLARED for standing in standings if standing.place == last):
        return [each for each in standings if each.place == last or (each.phase, each.step) == (UNDECLARED, last[0])]
    return [each for each in standings if each.place == last or each.phase in _ALONE]


def accuse(standings: Sequence[Standing]) -> Accusation:
    """Of ranks that all stand still."""
    behind = find_behind(standings)
    others = [standing for standing in standings if standing not in behind]
    if not others:
        return _accuse_among_equals(standings)
    odd = _find_ahead(behind, others)
    if odd is not None:
        said = f"it waits in {odd.phase} of step {odd.step}, where the others have not come: {describe_places(behind)}"
        witnesses = (Witness("pulse", True, said), *_ask_processes([odd], behind))
        return Accusation((odd.rank,), "collective", witnesses)
    said = f"{describe_places(behind)}; {describe_places(others)}"
    witnesses = (Witness("pulse", True, said), *_ask_processes(behind, others))
    return Accusation(tuple(standing.rank for standing in behind), behind[0].phase, witnesses)


def _find_ahead(behind: Sequence[Standing], others: Sequence[Standing]) -> Standing | None:
    """The only one that is ahead of all others, where these wait for something: it left a collective out, or took another first.

    Several ranks do not come late together, unless what they do is their own work (data), or they are busy with it.
    """
    if len(others) != 1 or len(behind) < 2:
        return None
    return others[0] if all(map(_is_waiting, behind)) else None


def _is_waiting(standing: Standing) -> bool:
    """By its phase and its process; of one on another host the phase alone, as far as that tells it."""
    if standing.is_elsewhere:
        return standing.phase in WAITING
    return standing.phase in (*WAITING, "forward") and standing.is_idle


def _ask_processes(accused: Sequence[Standing], others: Sequence[Standing]) -> list[Witness]:
    """Whether the operating system sees the accused compute and the others wait."""
    used = [standing.cores for standing in accused if standing.cores is not None]
    waiting = [standing.cores for standing in others if standing.cores is not None]
    if not used or not waiting:
        return []
    said = f"{name_ranks([each.rank for each in accused])} used {max(used):.2f} cores, the others at most {max(waiting):.2f}"
    worker = find_worker([*accused, *others])
    return [Witness("process", worker in accused, said)] if worker is not None else []


def _accuse_among_equals(standings: Sequence[Standing]) -> Accusation:
    phase = standings[0].phase
    same = Witness("pulse", False, describe_places(list(standings)))
    if len(standings) == 1:
        return Accusation((standings[0].rank,), phase, (Witness("pulse", True, standings[0].describe()),))
    fewest = _find_fewest([each.pulse.collectives_enqueued if each.pulse else 0 for each in standings])
    worker = find_worker(standings)
    if worker is not None and (fewest is None or standings[fewest] is worker):
        witnesses = [same, *_ask_processes([worker], [each for each in standings if each is not worker])]
        return Accusation((worker.rank,), phase, tuple(witnesses))
    if fewest is not None:
        guilty = standings[fewest]
        counts = sorted({each.pulse.collectives_enqueued for each in standings if each.pulse})
        said = f"it has begun {counts[0]:,} collectives, the others {counts[-1]:,}"
        witnesses = [Witness("pulse", True, said)]
        if worker is not None:
            witnesses.append(Witness("process", False, f"rank {worker.rank} computes"))
        return Accusation((guilty.rank,), "collective", tuple(witnesses))
    return Accusation((), phase, (same,))


def _find_fewest(counts: Sequence[int]) -> int | None:
    """The index of the one that is lower than all others, which agree."""
    rest = set(counts) - {min(counts)}
    return counts.index(min(counts)) if counts.count(min(counts)) == 1 and len(rest) == 1 else None
