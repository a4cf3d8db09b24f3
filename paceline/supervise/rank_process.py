"""A process of a run, held so that its number can never come to mean another one: looked at and signalled through descriptors.

    process = open_process(4711, "/dev/shm/paceline-a1b2-1/")      # None: it has gone, or it is not ours
    process.look()      -> ProcessSight(pid=4711, state="sleeping", cpu_s=12.5, memory_gib=0.4)
    process.signal(signal.SIGKILL)

The system gives a pid to the next process when the last one has gone. A process is ours if it has a pulse of this very attempt mapped
into its memory: no other program has, and what a rank forked has it, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from paceline.diagnose.sight import ProcessSight

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "disk",
    "T": "stopped",
    "t": "stopped",
    "Z": "zombie",
    "X": "gone",
}
_TICKS = os.sysconf("SC_CLK_TCK")
_MOST_BYTES = 1 << 16
_PAGES_PER_GIB = 2**30 / os.sysconf("SC_PAGE_SIZE")


class HeldProcess:
    """One living process, by a few descriptors; `close` lets go of them."""

    def __init__(self, pid: int) -> None:
        """OSError if there is none, or nobody may look."""
        self.pid = pid
        self.descriptor = os.pidfd_open(pid)
        """readable when it has ended"""
        self._stat = self._memory = self._groups = -1
        try:
            self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            self._memory = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.close()
            raise
        self._exit_code: int | None = None
        self._cpu_s = 0.0

    def look(self) -> ProcessSight:
        """What it does at this moment. A process whose parent has not asked yet how it ended still tells it."""
        try:
            text = os.pread(self._stat, 1024, 0)
            _, resident, mapped, _ = os.pread(self._memory, 256, 0).split(None, 3)
        except ProcessLookupError:
            return ProcessSight(self.pid, "gone", self._cpu_s, None, self._exit_code)
        # Whatever a process calls itself stands in brackets, and may hold any character.
        fields = text[text.rindex(b")") + 2 :].split(
            None, 13
        )  # so far as they are needed: this is asked of many, often
        state = _STATES.get(fields[0].decode("ascii", "replace"), "other")
        self._cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
        if state == "zombie":
            self._exit_code = os.waitstatus_to_exitcode(int(fields[13].split()[36]))
        # What it has mapped of files is the system's to take back: who reads its data so, touches more of them for hours.
        memory_gib = (int(resident) - int(mapped)) / _PAGES_PER_GIB if state not in ("zombie", "gone") else None
        return ProcessSight(self.pid, state, self._cpu_s, memory_gib, self._exit_code)

    def read_groups(self) -> bytes:
        """The control groups that it is in, as /proc/PID/cgroup lists them; empty where it has gone, or nobody tells."""
        try:
            if self._groups < 0:
                self._groups = os.open(f"/proc/{self.pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._groups, _MOST_BYTES, 0)
        except OSError:
            return b""

    def read_began_s(self) -> float | None:
        """When it was started, by the clock that began with the machine (CLOCK_BOOTTIME); None if it has gone."""
        try:
            text = os.pread(self._stat, 1024, 0)
        except ProcessLookupError:
            return None
        return int(text[text.rindex(b")") + 2 :].split()[19]) / _TICKS

    @property
    def is_alive(self) -> bool:
        return self.look().state not in ("zombie", "gone")

    def signal(self, number: int) -> bool:
        """Sends it, to this process and to no other; False if it has gone."""
        try:
            signal.pidfd_send_signal(self.descriptor, number)
        except ProcessLookupError:
            return False
        return True

    def read(self, name: str) -> str:
        """A file of /proc/PID; empty where it has gone, or nobody may read it."""
        try:
            text = Path(f"/proc/{self.pid}/{name}").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return text if self.look().state != "gone" else ""

    def environment(self) -> dict[str, str]:
        """As it was started with."""
        pairs = (entry.partition("=") for entry in self.read("environ").split("\0") if "=" in entry)
        return {name: value for name, _, value in pairs}

    def close(self) -> None:
        for descriptor in (self.descriptor, self._stat, self._memory, self._groups):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def open_process(pid: int, *proofs: str) -> HeldProcess | None:
    """The process, if it lives and has a file mapped whose path begins with one of `proofs`."""
    try:
        process = HeldProcess(pid)
    except OSError:
        return None
    # Asked when the descriptors are open: what has this number from here on is what we hold.
    maps = process.read("maps")
    if any(proof in maps for proof in proofs):
        return process
    process.close()
    return None


def is_hidden(pid: int) -> bool:
    """There is such a process, and we may not look at it: it may be ours. One that shows itself, and was not taken, is not."""
    try:
        with open(f"/proc/{pid}/maps", "rb"):
            return False
    except PermissionError:
        return True
    except OSError:
        return False
