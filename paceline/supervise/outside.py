"""Watches a script that knows nothing of us, by what can be seen from outside: the pace of its output, its processes and their CPU time.

It knows no phases, so that a long evaluation and a hang look alike to it. Where all ranks work, it is no hang; where some wait, the others
may evaluate or save: silence is noted when it is longer than usual, and called a stall only after an explicit limit. What it finds rests on
less than a pulse tells, and says so.
"""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import replace

from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.pauses import Pauses
from paceline.diagnose.sight import ProcessSight, RankSight, Sight
from paceline.supervise.rank_process import HeldProcess
from paceline.supervise.script_eye import ScriptEye
from paceline.supervise.settings import Settings
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.run_file import Attempt

_GAPS = 200
_ENOUGH = 5
"""pauses between lines from which on their pace is trusted"""
_FIRST_LIMIT_S = 600.0
_BUSY, _IDLE = 0.6, 0.3
"""cores; see `diagnose/standing.py`"""
_WANTS = 0.5
"""share of the looks that find a process at work, be it that it waits for a core, or for a disk: there is little CPU time in that"""
_DEAD_S = 2.0
_LESS = "seen from outside only: the script has no pulse"
_SPENT = "its output, its processes' state and CPU time are all there is to go by"


class _Work:
    """What a process has done since the script's last line."""

    def __init__(self, since: float, cpu_s: float) -> None:
        self._since = since
        self._began_cpu_s = cpu_s
        self._cpu_s = cpu_s
        self._looks = 0
        self._running = 0
        self._now = since

    def see(self, now: float, process: ProcessSight) -> None:
        self._now, self._cpu_s = now, process.cpu_s
        self._looks += 1
        self._running += process.state in ("running", "disk")

    @property
    def cores(self) -> float:
        return max(0.0, self._cpu_s - self._began_cpu_s) / max(0.01, self._now - self._since)

    @property
    def wants(self) -> float:
        return self._running / max(1, self._looks)

    @property
    def is_busy(self) -> bool:
        return self.cores >= _BUSY or self.wants >= _WANTS

    @property
    def is_idle(self) -> bool:
        return self.cores <= _IDLE and self.wants < _WANTS / 2

    def describe(self) -> str:
        return f"{self.cores:.2f} cores, at work in {self.wants:.0%} of the looks"


class OutsideWatch:
    """One attempt of a foreign script."""

    def __init__(self, layout: RunLayout, attempt: Attempt, settings: Settings) -> None:
        self.eye = ScriptEye(layout, attempt)
        self._limits = settings.limits
        self._gaps: deque[float] = deque(maxlen=_GAPS)
        """between lines, without what was longer than usual"""
        self._pauses = Pauses(settings.limits)
        self._is_excused = False
        """somebody was stopped since the last line: how long it was silent says nothing about its pace"""
        self._moved: float | None = None
        """when the output last grew, by the watcher's clock"""
        self._size = 0
        self._began: float | None = None
        self._since: dict[tuple[int, str], float] = {}
        self._work: dict[int, _Work] = {}
        """of each rank since the last line"""
        self._pids: dict[int, int | None] = {}

    @property
    def processes(self) -> dict[int, HeldProcess]:
        return self.eye.processes

    @property
    def told_step(self) -> int | None:
        return self.eye.step

    def kill(self) -> list[int]:
        return self.eye.kill()

    def look(self) -> tuple[Sight, list[Finding]]:
        sight = self.eye.look()
        now = sight.monotonic
        self._began = self._began if self._began is not None else now
        self._listen(now)
        for seen in sight.ranks:
            self._meet(seen)
            if seen.process is not None:
                self._follow(seen.rank, seen.process, now)
        return sight, self._judge(sight, now)

    def _listen(self, now: float) -> None:
        size = self.eye.output_size
        if size == self._size:
            return
        self._size = size
        if self._moved is not None and not self._is_excused:
            gap = now - self._moved
            if gap > self._usual()[0]:
                self._pauses.add(gap)
            else:
                self._gaps.append(gap)
        self._moved, self._is_excused = now, False

    def _meet(self, seen: RankSight) -> None:
        """A process that was not this rank before: what was known of the other one says nothing about it."""
        pid = seen.process.pid if seen.process is not None else None
        if self._pids.get(seen.rank) != pid:
            self._pids[seen.rank] = pid
            self._work.pop(seen.rank, None)
            for state in ("stopped", "gone"):
                self._since.pop((seen.rank, state), None)

    def _follow(self, rank: int, process: ProcessSight, now: float) -> None:
        for state in ("stopped", "gone"):
            is_so = process.state == state or (state == "gone" and process.state == "zombie")
            if is_so:
                self._since.setdefault((rank, state), now)
            else:
                self._since.pop((rank, state), None)
        work = self._work.get(rank)
        if work is None or self._moved == now:
            work = self._work[rank] = _Work(now, process.cpu_s)
        work.see(now, process)

    def _judge(self, sight: Sight, now: float) -> list[Finding]:
        stopped = [r for r in sight.ranks if now - self._since.get((r.rank, "stopped"), now) >= self._limits.stopped_s]
        if stopped:
            self._is_excused = True
            return [self._report_stopped(seen, sight) for seen in stopped]
        living = [r for r in sight.ranks if r.process is not None and (r.rank, "gone") not in self._since]
        gone = [r for r in sight.ranks if now - self._since.get((r.rank, "gone"), now) >= _DEAD_S]
        codes = {r.rank: r.process.exit_code for r in gone if r.process is not None}
        dead = [r for r in gone if codes[r.rank]]  # with 0 its work is done: ranks need not end together
        if dead and living:
            return [self._report_dead(seen, sight) for seen in dead[:1]]
        silent_s = now - (self._moved if self._moved is not None else self._began or now)
        if not living or silent_s < self._pauses.notice_s(self._usual()[0]):
            return []
        lost = [r for r in gone if codes[r.rank] is None]  # it may have been done, as far as anybody knows
        return [*(self._report_dead(seen, sight) for seen in lost[:1]), self._report_silence(living, silent_s, sight)]

    def _usual(self) -> tuple[float, str]:
        """From when on its silence is longer than usual, and where that comes from."""
        if self._moved is None:
            return self._limits.without_history("start"), "before its first line"
        if len(self._gaps) < _ENOUGH:
            return _FIRST_LIMIT_S, "for its first lines"
        p99 = sorted(self._gaps)[int(0.99 * len(self._gaps))]
        limit_s = max(self._limits.stall_floor_s, self._limits.stall_factor * p99)
        return limit_s, f"99 % of its lines come within {p99:.3g} s"

    def _report_stopped(self, seen: RankSight, sight: Sight) -> Finding:
        assert seen.process is not None
        pid, since = seen.process.pid, self._since[seen.rank, "stopped"]
        return Finding(
            "stopped",
            f"rank {seen.rank} of the script (pid {pid}) is stopped by the operating system{self._last_word()}",
            f"kill -CONT {pid} lets it go on; whoever sent SIGSTOP, a debugger or a job scheduler, can say why",
            severity="critical",
            cause="sigstop",
            rank=seen.rank,
            host=seen.host,
            step=self.eye.step,
            since=sight.time - (sight.monotonic - since),
            witnesses=(Witness("process", True, "state stopped (T)"), Witness("output", True, _LESS)),
        )

    def _report_dead(self, seen: RankSight, sight: Sight) -> Finding:
        assert seen.process is not None
        code = seen.process.exit_code
        how = f"ended with exit code {code}" if code is not None else "has gone, nobody knows how"
        return Finding(
            "dead_rank",
            f"rank {seen.rank} of the script (pid {seen.process.pid}) {how}, and the others go on waiting{self._last_word()}",
            "read the end of logs/rank_00000.log; dmesg tells whether the kernel killed it for its memory",
            severity="critical" if code is not None else "warning",
            cause=f"exit_{code}" if code is not None and code >= 0 else "gone" if code is None else f"signal_{-code}",
            rank=seen.rank,
            host=seen.host,
            step=self.eye.step,
            since=sight.time - (sight.monotonic - self._since[seen.rank, "gone"]),
            witnesses=(Witness("process", True, how), Witness("output", True, _LESS)),
        )

    def _report_silence(self, living: list[RankSight], silent_s: float, sight: Sight) -> Finding:
        """A stall if some rank waits, for long enough; nothing worse than slow if all of them work."""
        usual_s, why = self._usual()
        limit_s = self._pauses.limit_s(usual_s)
        works = {seen.rank: self._work[seen.rank] for seen in living if seen.rank in self._work}
        idle = [rank for rank, work in works.items() if work.is_idle]
        busy = [rank for rank, work in works.items() if work.is_busy]
        said = "; ".join(f"rank {rank}: {work.describe()}" for rank, work in works.items())
        guilty = busy if len(busy) == 1 and len(idle) == len(works) - 1 else idle if len(idle) == 1 < len(busy) else []
        rank = guilty[0] if guilty and len(works) > 1 else None
        process = Witness("process", rank is not None or bool(idle), said or "CPU time not known")
        output = Witness("output", True, f"no line for {silent_s:.1f} s; {why}; {_LESS}")
        how = "computes alone while the others wait" if rank in busy else "waits while the others compute"
        nobody = "no rank differs from the others" if len(works) > 1 else "it waits"
        which = f"rank {rank} {how}" if rank is not None else nobody
        all_compute = f"all its ranks compute: {said}"
        finding = Finding(
            "slow",
            f"the script has said nothing for {silent_s:.1f} s ({why}), and {which if idle else all_compute}; it may evaluate or save",
            "wait if it evaluates or saves; with three lines of the SDK its phases would be known",
            severity="note",
            host=socket.gethostname(),
            step=self.eye.step,
            since=sight.time - silent_s,
            witnesses=(output, process),
            numbers={"held_s": silent_s, "limit_s": limit_s},
        )
        if not idle or silent_s < limit_s:
            return finding
        whose = f"rank {rank} of the script holds it up" if rank is not None else "the script stands still"
        return replace(
            finding,
            kind="stall",
            what=f"{whose}: no line for {silent_s:.1f} s (limit {limit_s:.3g} s; {why}), and {which}; {_SPENT}",
            do="paceline diagnose RUN --stacks shows where each rank is, where py-spy is installed",
            severity="critical",
            rank=rank,
        )

    def _last_word(self) -> str:
        return f"; its output told step {self.eye.step} last" if self.eye.step else ""

    def close(self) -> None:
        self.eye.close()
