"""What the heartbeats of a run say when nothing else is left: who stood still before the others, and whose GPU ran slower.

Beats go on while a rank hangs (a thread of its own writes them), so their last ones tell for how long it had been where it was, each by
its own clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from paceline.diagnose.culprit import accuse, find_behind
from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.limits import RARE, UNDECLARED, Limits
from paceline.diagnose.standing import Standing, describe_places, name_ranks
from paceline.telemetry.numbers import is_number
from paceline.telemetry.pulse import Pulse

Beat = Mapping[str, Any]
_FLOOR_S = 15.0
"""three heartbeats, with the default interval"""
_SLOW_CLOCK = 0.85
_BUSY_GPU = 50
_LEAST_BEATS = 3


def judge_beats(beats: Mapping[int, Sequence[Beat]], attempt: int, limits: Limits) -> list[Finding]:
    """rank -> its last beats, the oldest first."""
    own = {
        rank: [beat for beat in of_rank if beat.get("attempt") == attempt and _is_whole(beat)]
        for rank, of_rank in beats.items()
    }
    known = {rank: of_rank for rank, of_rank in own.items() if of_rank}
    return [*_find_stall(known, limits), *_find_throttled(known)]


def _find_stall(beats: Mapping[int, Sequence[Beat]], limits: Limits) -> list[Finding]:
    standings = [_standing(rank, of_rank) for rank, of_rank in sorted(beats.items())]
    if len(standings) < 2 or any(standing.phase == "end" for standing in standings):
        return []
    behind = find_behind(standings)
    held_s = min(standing.held_s for standing in standings)
    limit_s = max(
        limits.without_history(standing.phase) if standing.phase in (*RARE, "start", "compile", "profile") else _FLOOR_S
        for standing in behind
    )
    if held_s < max(limit_s, _FLOOR_S, limits.stall_factor * _usual_step_s(beats)):
        return []
    accused = accuse(standings)
    guilty = [standing for standing in standings if standing.rank in accused.ranks]
    who = name_ranks(accused.ranks) if guilty else "no rank that differs from the others"
    said = f"{describe_places(standings)}, unchanged for {held_s:.0f} s"
    is_undeclared = any(standing.phase == UNDECLARED for standing in behind)
    is_sure = not is_undeclared or held_s >= limits.without_history(UNDECLARED)
    return [
        Finding(
            "stall",
            f"the run stood still at the end: {who}; {said}{'' if is_sure else '; it does not say what it did there'}",
            f"read logs/rank_{guilty[0].rank:05d}.log" if guilty else "read the last lines of logs/",
            severity="critical" if is_sure else "warning",
            cause=accused.cause,
            rank=accused.ranks[0] if len(accused.ranks) == 1 else None,
            ranks=accused.ranks if len(accused.ranks) > 1 else (),
            host=guilty[0].host if len(guilty) == 1 else None,
            phase=(guilty or behind)[0].phase,
            step=(guilty or behind)[0].step,
            witnesses=(Witness("heartbeat", bool(guilty), said),),
            numbers={"held_s": held_s},
        )
    ]


def _standing(rank: int, beats: Sequence[Beat]) -> Standing:
    last = beats[-1]
    place = (last["step"], last["phase"])
    same = [beat for beat in beats if (beat["step"], beat["phase"]) == place]
    first = same[0]["time"]
    pulse = Pulse(rank, int(last.get("pid") or 0), last["attempt"], last["step"], last["phase"], first, 0, 0)
    return Standing(rank, str(last.get("host")), pulse, last["time"] - first, None, None)


def _usual_step_s(beats: Mapping[int, Sequence[Beat]]) -> float:
    told = [beat["step_ms"]["p90"] for of_rank in beats.values() for beat in of_rank if _has_step_ms(beat)]
    return max(told, default=0.0) / 1000


def _find_throttled(beats: Mapping[int, Sequence[Beat]]) -> list[Finding]:
    """A busy GPU whose clock is well below that of the others."""
    clocks = {}
    for rank, of_rank in beats.items():
        told = [beat["gpu"] for beat in of_rank if isinstance(beat.get("gpu"), dict)]
        busy = [
            float(gpu["clock_mhz"])
            for gpu in told
            if is_number(gpu.get("clock_mhz")) and is_number(gpu.get("util")) and gpu["util"] >= _BUSY_GPU
        ]
        if len(busy) >= _LEAST_BEATS:
            clocks[rank] = median(busy[-10:])
    if len(clocks) < 2:
        return []
    found = []
    for rank, clock in sorted(clocks.items()):
        others = median(other for each, other in clocks.items() if each != rank)
        if clock < _SLOW_CLOCK * others:
            said = f"{clock:.0f} MHz, the others {others:.0f} MHz"
            found.append(
                Finding(
                    "throttled",
                    f"the GPU of rank {rank} runs at {clock / others:.0%} of the others' clock ({said})",
                    "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER on its host tells why: heat, a power limit, or set clocks",
                    cause="clock",
                    rank=rank,
                    host=str(beats[rank][-1].get("host")),
                    witnesses=(Witness("gpu", True, said),),
                    numbers={"clock_mhz": clock, "others_mhz": others},
                )
            )
    return found


def _is_whole(beat: Beat) -> bool:
    return isinstance(beat.get("step"), int) and isinstance(beat.get("phase"), str) and is_number(beat.get("time"))


def _has_step_ms(beat: Beat) -> bool:
    told = beat.get("step_ms")
    return isinstance(told, dict) and is_number(told.get("p90"))
