"""Is a run alive? Sights in, several a second; out come the findings that hold now, with the culprit named.

It has no clock of its own. How long a rank has been where it is, is counted by the watcher's clock from the moment at which something
of it was last seen to move; a time that a rank wrote down is only told, never compared with another host's.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from dataclasses import dataclass, replace

from paceline.diagnose.culprit import Accusation, accuse, find_behind
from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.limits import Limits
from paceline.diagnose.pace import Pace
from paceline.diagnose.sight import ProcessSight, RankSight, Sight
from paceline.diagnose.slowness import Slowness
from paceline.diagnose.standing import Standing, describe_places, name_ranks
from paceline.telemetry.pulse import Pulse

_GONE = ("gone", "zombie")
_LEAST_S = 1.0
"""over which CPU time tells whether a process works"""


@dataclass
class _Track:
    """One rank through time."""

    seen: RankSight
    moved: float
    """when something of it last changed, by the watcher's clock"""
    pulse: Pulse | None = None
    cpu_s: float | None = None
    cpu_at: float = 0.0
    """CPU time of its process when it was first seen not to have moved, and when that was"""
    stopped: float | None = None
    """since when it has been seen stopped"""
    is_excused: bool = False
    """somebody was stopped while it was where it is: how long that took says nothing about the pace"""
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

    def begin(self, sight: Sight) -> None:
        """For somebody who comes late and looks only for a moment: where a rank is on this host, its own clock says since when."""
        for seen in sight.ranks:
            pulse = seen.pulse
            if pulse is None or pulse.attempt != sight.attempt or seen.process is None:
                continue
            held_s = max(0.0, sight.time - pulse.since)
            self._tracks[seen.rank] = _Track(seen, sight.monotonic - held_s, pulse)
            self.pace.learn(replace(pulse, step=pulse.step - pulse.steps, spent_s={}), pulse, 0.0)
        self._attempt = sight.attempt
        self.see(sight)

    def see(self, sight: Sight) -> list[Finding]:
        """What holds at this moment."""
        if sight.attempt != self._attempt:
            self._attempt = sight.attempt
            self._tracks = {}
            self.pace = Pace(self._limits)
            self._slowness = Slowness()
        for seen in sight.ranks:
            self._follow(seen, sight)
        tracks = [self._tracks[rank] for rank in sorted(self._tracks) if rank < sight.world_size]
        if not tracks:
            return []
        self._excuse(tracks, sight)
        dead = [track for track in tracks if track.gone is not None]
        if dead:
            return self._report_dead(dead, tracks, sight)
        stopped = [track for track in tracks if self._is_stopped(track, sight)]
        if stopped:
            return [self._report_stopped(track, sight) for track in stopped]
        slow = self._slowness.see(sight)
        return self._find_stall([self._standing(track, sight) for track in tracks], sight) or slow

    def standings(self, sight: Sight) -> list[Standing]:
        """Where every rank stood at the last sight, for a report."""
        return [self._standing(self._tracks[rank], sight) for rank in sorted(self._tracks)]

    def _follow(self, seen: RankSight, sight: Sight) -> None:
        track = self._tracks.get(seen.rank)
        if track is None:
            track = self._tracks[seen.rank] = _Track(seen, sight.monotonic)
        track.seen = seen
        has_moved = False
        pulse = seen.pulse if seen.pulse is not None and seen.pulse.attempt == sight.attempt else None
        if pulse is not None and pulse != track.pulse:
            if track.pulse is not None and not track.is_excused:
                self.pace.learn(track.pulse, pulse, sight.monotonic - track.moved)
            track.pulse, track.moved, track.cpu_s, track.is_excused = pulse, sight.monotonic, None, False
            has_moved = True
        process = seen.process
        if process is None:
            track.stopped = track.gone = None
            return
        if track.cpu_s is None and not has_moved:
            track.cpu_s, track.cpu_at = process.cpu_s, sight.monotonic
        track.stopped = _since(track.stopped, process.state == "stopped", sight.monotonic)
        track.gone = _since(track.gone, process.state in _GONE and not _has_ended(track, process), sight.monotonic)

    def _excuse(self, tracks: list[_Track], sight: Sight) -> None:
        """While a rank is stopped all others wait for it: when it goes on, the time of all of them begins anew."""
        is_stopped = any(track.stopped is not None for track in tracks)
        for track in tracks:
            track.is_excused |= is_stopped
            if self._was_stopped and not is_stopped:
                track.moved = sight.monotonic
        self._was_stopped = is_stopped

    def _is_stopped(self, track: _Track, sight: Sight) -> bool:
        return track.stopped is not None and sight.monotonic - track.stopped >= self._limits.stopped_s

    def _standing(self, track: _Track, sight: Sight) -> Standing:
        held_s = sight.monotonic - track.moved
        process = track.seen.process
        cores = None
        if process is not None and track.cpu_s is not None and sight.monotonic - track.cpu_at >= _LEAST_S:
            cores = max(0.0, process.cpu_s - track.cpu_s) / (sight.monotonic - track.cpu_at)
        return Standing(track.seen.rank, track.seen.host, track.pulse, held_s, process, cores)

    def _report_stopped(self, track: _Track, sight: Sight) -> Finding:
        standing = self._standing(track, sight)
        process = track.seen.process
        assert process is not None
        assert track.stopped is not None
        return Finding(
            "stopped",
            f"rank {standing.rank} (pid {process.pid}) is stopped by the operating system, in {_where(standing)}",
            f"kill -CONT {process.pid} lets it go on; whoever sent SIGSTOP, a debugger or a job scheduler, can say why",
            severity="critical",
            cause="sigstop",
            rank=standing.rank,
            host=standing.host,
            phase=standing.phase,
            step=standing.step,
            since=sight.time - (sight.monotonic - track.stopped),
            witnesses=(Witness("process", True, "state stopped (T)"),),
        )

    def _report_dead(self, dead: list[_Track], tracks: list[_Track], sight: Sight) -> list[Finding]:
        first = min(track.gone for track in dead if track.gone is not None)
        group = [track for track in dead if track.gone == first]
        killed = [track for track in group if _is_violent(track.seen.process)]
        guilty = killed or group
        hosts: dict[str, list[_Track]] = defaultdict(list)
        for track in tracks:
            hosts[track.seen.host].append(track)
        whole = [host for host, on_host in hosts.items() if all(track in guilty for track in on_host)]
        if len(hosts) > 1 and len(whole) == 1 and len(guilty) > 1 and len(hosts[whole[0]]) == len(guilty):
            return [_report_dead_host(whole[0], [self._standing(track, sight) for track in guilty])]
        standings = [self._standing(track, sight) for track in guilty]
        return [_report_dead_ranks(standings, sight.time - (sight.monotonic - first), len(tracks))]

    def _find_stall(self, standings: list[Standing], sight: Sight) -> list[Finding]:
        known = [standing for standing in standings if standing.pulse is not None]
        if not known:
            return []  # nothing but processes to look at: what they do is not known well enough to accuse anybody
        if any(standing.phase != "start" for standing in known):
            # A rank without a sign of life is late only as long as the others may be waiting for it; later it is on another host.
            standings = known
        behind = find_behind(standings)
        held_s = min(standing.held_s for standing in behind)
        limit_s = max(self.pace.limit(standing.phase) for standing in behind)
        if held_s < limit_s:
            return []
        return [self._report_stall(standings, behind, accuse(standings), held_s, sight)]

    def _report_stall(
        self, standings: list[Standing], behind: list[Standing], accused: Accusation, held_s: float, sight: Sight
    ) -> Finding:
        guilty = [standing for standing in standings if standing.rank in accused.ranks]
        shown = guilty[0] if guilty else behind[0]
        limit = self.pace.explain_limit(behind[0].phase)
        if guilty:
            what = f"the run stands still: {name_ranks(accused.ranks)} in {_where(shown)} for {shown.held_s:.1f} s"
            others = [standing for standing in standings if standing not in guilty]
            if others:
                what += f"; waiting: {describe_places(others)}"
        else:
            what = f"the run stands still for {held_s:.1f} s, and no rank differs from the others: {describe_places(standings)}"
        return Finding(
            "stall",
            f"{what} (limit {limit})",
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
            numbers={"held_s": held_s, "limit_s": max(self.pace.limit(each.phase) for each in behind)},
        )


def _since(before: float | None, holds: bool, now: float) -> float | None:
    return (before if before is not None else now) if holds else None


def _has_ended(track: _Track, process: ProcessSight) -> bool:
    """A process that left as it should, after its last word."""
    if process.exit_code is not None:
        return process.exit_code == 0
    return track.pulse is not None and track.pulse.phase == "end"


def _is_violent(process: ProcessSight | None) -> bool:
    """Whether it was killed, otherwise than by the SIGTERM or SIGINT with which the others are sent away."""
    code = process.exit_code if process is not None else None
    return code is not None and code < 0 and -code not in (signal.SIGTERM, signal.SIGINT)


def _where(standing: Standing) -> str:
    return f"{standing.phase} of step {standing.step}" if standing.pulse is not None else "its start"


def _report_dead_ranks(standings: list[Standing], since: float, world_size: int) -> Finding:
    first = standings[0]
    code = first.process.exit_code if first.process is not None else None
    cause, how = _explain_exit(code)
    ranks = tuple(standing.rank for standing in standings)
    return Finding(
        "dead_rank",
        f"{name_ranks(ranks)} of {world_size} {how}, in {_where(first)}",
        f"read the end of logs/rank_{first.rank:05d}.log; dmesg tells whether the kernel killed it for its memory",
        severity="critical",
        cause=cause,
        rank=ranks[0] if len(ranks) == 1 else None,
        ranks=ranks if len(ranks) > 1 else (),
        host=first.host if len({standing.host for standing in standings}) == 1 else None,
        phase=first.phase,
        step=first.step,
        since=since,
        witnesses=(Witness("process", True, how),),
    )


def _report_dead_host(host: str, standings: list[Standing]) -> Finding:
    ranks = tuple(standing.rank for standing in standings)
    return Finding(
        "dead_host",
        f"all ranks of host {host} have gone ({name_ranks(ranks)})",
        f"look whether {host} answers at all, then at its kernel's log",
        severity="critical",
        ranks=ranks,
        host=host,
        step=standings[0].step,
        phase=standings[0].phase,
        witnesses=(Witness("process", True, "every process there has gone"),),
    )


def _explain_exit(code: int | None) -> tuple[str, str]:
    if code is None:
        return "gone", "has gone (its process is no longer there)"
    if code >= 0:
        return f"exit_{code}", f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return name.lower(), f"was killed by {name}"
