"""Is a run alive? Sights in, several a second; out come the findings that hold now, with the culprit named.

It has no clock of its own. How long a rank has been where it is, is counted by the watcher's clock from the moment at which something
of it was last seen to move; a time that a rank wrote down is only told, never compared with another host's.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.diagnose.culprit import accuse, find_behind
from paceline.diagnose.deaths import has_died, report_deaths, report_stopped
from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.limits import Limits
from paceline.diagnose.pace import Pace
from paceline.diagnose.sight import RankSight, Sight
from paceline.diagnose.slowness import Slowness
from paceline.diagnose.standing import Standing, describe_places, name_ranks
from paceline.diagnose.unseen import is_stuck_alone, report_waiting
from paceline.telemetry.pulse import Pulse

_LEAST_S = 1.0
"""over which CPU time tells whether a process works; and for which whoever comes late looks for himself whether anything moves"""
_USED_S = 0.02
"""of CPU time: more than the kernel may book after a process has stopped"""
_MOST_BETWEEN_S = 0.5
"""of the time between two looks: what is over the limit at the next one is told now"""


@dataclass
class _Track:
    """One rank through time."""

    seen: RankSight
    moved: float
    """when something of it last changed, by the watcher's clock"""
    stood: float = 0.0
    """when it was last seen not to have moved since then"""
    pulse: Pulse | None = None
    cpu_s: float | None = None
    cpu_at: float = 0.0
    """CPU time of its process when it was first seen not to have moved, and when that was"""
    stopped: float | None = None
    stopped_cpu_s: float = 0.0
    """since when it has been seen stopped, and its CPU time then"""
    is_excused: bool = False
    """somebody was stopped while it was where it is: how long that took says nothing about the pace"""
    is_told: bool = False
    """where it is, it was said to have stalled"""
    gone: float | None = None
    """since when it has been seen gone"""


class Liveness:
    """Follows the ranks of a run."""

    def __init__(self, limits: Limits) -> None:
        self.pace = Pace(limits)
        self._limits = limits
        self._attempt: int | None = None
        self._tracks: dict[int, _Track] = {}
        self._slowness = Slowness()
        self._was_stopped = False
        self._began: float | None = None
        self._looked = 0.0
        self._between_s = 0.0

    def begin(self, sight: Sight) -> None:
        """For somebody who comes late and looks only for a moment: where a rank is on this host, its own clock says since when."""
        for seen in sight.ranks:
            pulse = seen.pulse
            if pulse is None or pulse.attempt != sight.attempt or seen.process is None:
                continue
            held_s = max(0.0, sight.time - pulse.since)
            self._tracks[seen.rank] = _Track(seen, sight.monotonic - held_s, pulse=pulse)
            self.pace.learn(pulse._replace(step=pulse.step - pulse.steps, spent_s={}), pulse, 0.0)
        self._attempt = sight.attempt
        self.see(sight)

    def see(self, sight: Sight) -> list[Finding]:
        """What holds at this moment."""
        if sight.attempt != self._attempt:
            self._attempt = sight.attempt
            self._tracks = {}
            self.pace = Pace(self._limits)
            self._slowness = Slowness()
            self._began = None
        self._began = sight.monotonic if self._began is None else self._began
        self._between_s = max(0.0, min(sight.monotonic - self._looked, _MOST_BETWEEN_S))
        self._looked = sight.monotonic
        for seen in sight.ranks:
            self._follow(seen, sight)
        self.pace.end_look()
        tracks = [self._tracks[rank] for rank in sorted(self._tracks) if rank < sight.world_size]
        if not tracks:
            return []
        self._excuse(tracks, sight)
        dead = [track for track in tracks if track.gone is not None]
        if dead:
            return [self._report_dead(dead, tracks, sight)]
        stopped = [track for track in tracks if self._stopped_s(track, sight) >= self._limits.stopped_s]
        if stopped:
            now = sight.time
            return [report_stopped(self._standing(each, sight), now - self._stopped_s(each, sight)) for each in stopped]
        # Who does not see everybody leaves the pace of the run to the one who does.
        slow = self._slowness.see(sight) if not sight.unseen else []
        known = [track for track in tracks if track.seen.rank not in sight.unseen] if sight.unseen else tracks
        if not self._is_anybody_late(known, sight.monotonic):
            return slow
        return self._find_stall([self._standing(track, sight) for track in tracks], sight) or slow

    def _follow(self, seen: RankSight, sight: Sight) -> None:
        track = self._tracks.get(seen.rank)
        if track is None:
            track = self._tracks[seen.rank] = _Track(seen, sight.monotonic)
        track.seen = seen
        has_moved = False
        pulse = seen.pulse if seen.pulse is not None and seen.pulse.attempt == sight.attempt else None
        if pulse is not None and pulse is not track.pulse and pulse != track.pulse:
            if track.pulse is not None and not track.is_excused:
                stood_s = max(0.0, track.stood - track.moved)
                self.pace.learn(track.pulse, pulse, sight.monotonic - track.moved, stood_s)
                if track.is_told:
                    self.pace.forgive(track.pulse.phase, stood_s)
            track.pulse, track.moved, track.cpu_s = pulse, sight.monotonic, None
            track.is_excused = track.is_told = False
            has_moved = True
        else:
            track.stood = sight.monotonic
        process = seen.process
        if process is None:
            track.stopped = track.gone = None
            return
        if track.cpu_s is None and not has_moved:
            track.cpu_s, track.cpu_at = process.cpu_s, sight.monotonic
        # One that is stopped in turns, by whoever slows it down, gets on between two looks.
        is_stopped = process.state == "stopped" and not has_moved
        if track.stopped is None or process.cpu_s - track.stopped_cpu_s > _USED_S:
            track.stopped, track.stopped_cpu_s = None, process.cpu_s
        track.stopped = _since(track.stopped, is_stopped, sight.monotonic)
        track.gone = _since(track.gone, has_died(process, track.pulse), sight.monotonic)

    def _excuse(self, tracks: list[_Track], sight: Sight) -> None:
        """While a rank is stopped all others wait for it: when it goes on, the time of all of them begins anew."""
        is_stopped = any(self._stopped_s(track, sight) >= self._limits.stopped_s for track in tracks)
        for track in tracks:
            track.is_excused |= is_stopped
            if self._was_stopped and not is_stopped:
                track.moved = sight.monotonic
        self._was_stopped = is_stopped

    def _stopped_s(self, track: _Track, sight: Sight) -> float:
        return sight.monotonic - track.stopped if track.stopped is not None else 0.0

    def _standing(self, track: _Track, sight: Sight) -> Standing:
        held_s = sight.monotonic - track.moved
        process = track.seen.process
        cores = None
        if process is not None and track.cpu_s is not None and sight.monotonic - track.cpu_at >= _LEAST_S:
            cores = max(0.0, process.cpu_s - track.cpu_s) / (sight.monotonic - track.cpu_at)
        hearsay = track.seen.hearsay
        silent_s = hearsay.silent_s if hearsay is not None else 0.0
        rank, host = track.seen.rank, track.seen.host
        return Standing(
            rank, host, track.pulse, held_s, process, cores, hearsay is not None, silent_s, rank in sight.unseen
        )

    def _report_dead(self, dead: list[_Track], tracks: list[_Track], sight: Sight) -> Finding:
        first = min(track.gone for track in dead if track.gone is not None)
        group = [self._standing(track, sight) for track in dead if track.gone == first]
        since = sight.time - (sight.monotonic - first)
        return report_deaths(group, [self._standing(track, sight) for track in tracks], since)

    def _is_anybody_late(self, tracks: list[_Track], now: float) -> bool:
        """Whether a rank has been where it is for longer than its phase may take: mostly none has, and nobody has to be compared."""
        moved: dict[str, float] = {}
        for track in tracks:
            phase = track.pulse.phase if track.pulse is not None else "start"
            moved[phase] = min(moved.get(phase, now), track.moved)
        limits = {phase: min(self.pace.limit(phase), self.pace.notice_limit(phase)) for phase in moved}
        return any(self._is_over(now - since, limits[phase]) for phase, since in moved.items())

    def _find_stall(self, everybody: list[Standing], sight: Sight) -> list[Finding]:
        unseen = [standing for standing in everybody if standing.is_unseen]
        standings = [standing for standing in everybody if not standing.is_unseen]
        known = [standing for standing in standings if standing.pulse is not None]
        if not known:
            return []  # nothing but processes to look at: what they do is not known well enough to accuse anybody
        if any(standing.phase != "start" for standing in known):
            # A rank without a sign of life is late only as long as the others may be waiting for it; later it is on another host.
            standings = known
        behind = find_behind(standings)
        held_s = min(standing.held_s for standing in behind)
        assert self._began is not None
        if sight.monotonic - self._began < _LEAST_S:
            return []
        longest = max(behind, key=lambda standing: self.pace.limit(standing.phase))
        limit_s = self.pace.limit(longest.phase)
        if unseen and not any(is_stuck_alone(standing, standings) for standing in behind):
            far_limit_s = max(self.pace.far_limit(standing.phase) for standing in behind)
            is_late = self._is_over(held_s, limit_s)
            return [report_waiting(standings, unseen, sight, limit_s, far_limit_s)] if is_late else []
        if self._is_over(held_s, limit_s):
            for standing in behind:
                self._tracks[standing.rank].is_told = True
            act_s = max(self.pace.act_limit(standing.phase) for standing in behind)
            return [_report_stall(standings, behind, sight, self.pace.explain_limit(longest.phase), limit_s, act_s)]
        if self._is_over(held_s, max(self.pace.notice_limit(standing.phase) for standing in behind)):
            return [_report_pause(behind, held_s, limit_s, sight)]
        return []

    def _is_over(self, held_s: float, limit_s: float) -> bool:
        """A limit is the time within which it is noticed: it began up to a look before it was seen, and the next look comes too late.

        Never more than a quarter of it: with a short limit, and looks that are far apart, a rank that has just moved would have stalled.
        """
        return held_s + min(2 * self._between_s, limit_s / 4) >= limit_s


def _report_stall(
    standings: list[Standing], behind: list[Standing], sight: Sight, limit: str, limit_s: float, act_s: float
) -> Finding:
    accused = accuse(standings)
    held_s = min(standing.held_s for standing in behind)
    guilty = [standing for standing in standings if standing.rank in accused.ranks]
    shown = guilty[0] if guilty else behind[0]
    if guilty:
        what = f"the run stands still: {name_ranks(accused.ranks)} in {shown.where} for {shown.held_s:.1f} s"
        others = [standing for standing in standings if standing not in guilty]
        if others:
            what += f"; waiting: {describe_places(others)}"
    else:
        what = f"the run stands still for {held_s:.1f} s, and no rank differs from the others: {describe_places(standings)}"
    return Finding(
        "stall",
        f"{what} ({'limit' if held_s >= limit_s else 'told within its limit:'} {limit})",
        "paceline diagnose RUN --stacks shows where each rank is",
        severity="critical",
        cause=accused.cause,
        rank=accused.ranks[0] if len(accused.ranks) == 1 else None,
        ranks=accused.ranks if len(accused.ranks) > 1 else (),
        host=shown.host if guilty and len({standing.host for standing in guilty}) == 1 else None,
        phase=shown.phase,
        step=shown.step,
        since=shown.pulse.since if shown.pulse is not None else sight.time - shown.held_s,
        witnesses=accused.witnesses,
        numbers={"held_s": held_s, "limit_s": limit_s, "act_s": act_s},
    )


def _report_pause(behind: list[Standing], held_s: float, limit_s: float, sight: Sight) -> Finding:
    """A loop that does not say where it is, for longer than usual: it evaluates, saves, or hangs."""
    said = f"{describe_places(behind)} for {held_s:.1f} s"
    return Finding(
        "slow",
        f"the loop does not say what it does: {said}, longer than usual; it may evaluate, save, or hang, and counts as hung after {limit_s:.0f} s",
        'declare it with run.phase("evaluate") or run.phase("checkpoint"); paceline diagnose RUN --stacks shows where it is',
        severity="note",
        rank=behind[0].rank if len(behind) == 1 else None,
        ranks=tuple(standing.rank for standing in behind) if len(behind) > 1 else (),
        phase=behind[0].phase,
        step=behind[0].step,
        since=sight.time - held_s,
        witnesses=(Witness("pulse", True, said),),
        numbers={"held_s": held_s, "limit_s": limit_s},
    )


def _since(before: float | None, holds: bool, now: float) -> float | None:
    return (before if before is not None else now) if holds else None
