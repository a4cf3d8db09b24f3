"""A rank's pulse: a small shared-memory record of where it is right now, readable when the rank is stuck in C, or dead.

Written a few times per step for about a microsecond each; never touches a disk. The file is preallocated (a write into a hole
on a full file system would kill the rank with SIGBUS) and guarded by a sequence number that is odd while a write is under way.

    PulseWriter(directory, rank=0, attempt=1).beat(step=12, phase="forward")
    read_pulse(directory, rank=0)   ->   Pulse(rank=0, pid=4711, attempt=1, step=12, phase='forward', since=..., ...)

Of a run on several hosts the record itself is sent on, and kept on the host that compares all ranks:

    store_remote_pulse(leaders_directory, rank=2, data=raw_pulse(directory, rank=2))
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import struct
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from paceline.telemetry.thread_time import ThreadTime, open_thread_time

PHASES = (
    "start",
    "data",
    "forward",
    "backward",
    "optimizer",
    "evaluate",
    "check",
    "log",
    "end",
    "checkpoint",
    "compile",
    "step",
    "profile",
    "snapshot",
)
"""What a rank can be doing; the index is what the record holds, so new ones are added at the end. `step`: somewhere in
a step, of a loop that does not tell its phases. `snapshot`: copies what a checkpoint will hold; `checkpoint`: writes it, or
waits until it is written."""

OWN_PHASES = ("data", "forward", "backward")
"""of a step: those in which a rank waits for other ranks in a known place, if at all"""

_SHARED_MEMORY = Path("/dev/shm")
_NAME = re.compile(r"paceline-\w+-\d+")
_MAGIC = 0x50414345  # "PACE"
_VERSION = 3
_HEAD = struct.Struct("<IIiii4x")  # magic, version, pid, rank, attempt
_SEQUENCE = struct.Struct("<q")
_MOST_PHASES = 24
_RECENT = 64
# step, phase, steps begun by this process, since (unix time), collectives enqueued, completed, waits, waited (ms), seconds in each phase,
# the last waits (ms): the n-th is at place n modulo 64; and of the same steps what an Own says
_OWN = len(OWN_PHASES) + 1
_BODY = struct.Struct(f"<qiIdqqqd{_MOST_PHASES}d{_RECENT}d{_RECENT * _OWN}d")
_FIXED = struct.Struct(f"<qiIdqqqd{len(PHASES)}d")  # of it, what is no ring
_MOVING = struct.Struct("<qiIdqq")  # what every beat says; the rest changes by single words
_BODY_START = _HEAD.size + _SEQUENCE.size
_SEQUENCE_WORD = _HEAD.size // _SEQUENCE.size
_ENQUEUED_WORD = (_BODY_START + 24) // 8
_WAITS_WORD = _ENQUEUED_WORD + 2
_SPENT_WORD = _WAITS_WORD + 2
_RECENT_WORD = _SPENT_WORD + _MOST_PHASES
_OWN_WORD = _RECENT_WORD + _RECENT
_COUNTS = slice(_ENQUEUED_WORD * 8, _WAITS_WORD * 8)  # collectives: they change without a new sequence number
_SIZE = 4096
_WHOLE = _BODY_START + _BODY.size
_ELSEWHERE = "elsewhere"
_READS = 50
_LEAST_MS = 1e-6
_BACKWARD = OWN_PHASES.index("backward")
_PHASE_INDEX = {name: index for index, name in enumerate(PHASES)}


Own = tuple[float, float, float, float]
"""What a step was for one rank alone, in ms: how long in each of OWN_PHASES it neither ran, nor was ready to run, nor waited for the other
ranks, so for something of its own; and how long it was ready to run and got no core, in all of these."""


class Pulse(NamedTuple):
    """One reading. A tuple, because many are made each second."""

    rank: int
    pid: int
    attempt: int
    step: int
    phase: str
    since: float
    collectives_enqueued: int
    collectives_completed: int
    waits: int = 0
    """steps of which it is known how long this rank waited for the others"""
    waited_ms: float = 0.0
    """in all of these together"""
    spent_s: Mapping[str, float] = MappingProxyType({})
    """time in each phase that it has been in, up to `since`, by the host's clock; of `checkpoint` also what was written meanwhile"""
    steps: int = 0
    """steps that its process has begun: over these `spent_s` has added up, whatever step it resumed at"""
    recent_ms: Sequence[float] = ()
    """the last of its waits, the newest last: whoever looks now and then still sees every step"""
    recent_own_ms: Sequence[float] = ()
    """of the same steps, of each what an Own says; empty: it does not tell"""

    def to_record(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return self._asdict() | {"recent_ms": list(self.recent_ms), "recent_own_ms": list(self.recent_own_ms)}

    def list_waits(self, begin: int, end: int) -> Sequence[float]:
        """Of the steps that told their wait, counted from 0, from one of the recent ones up to before another."""
        before = self.waits - len(self.recent_ms)
        return self.recent_ms[begin - before : end - before]

    def list_own(self, begin: int, end: int) -> list[Own]:
        """Of the same steps."""
        before = self.waits - len(self.recent_ms)
        flat = list(self.recent_own_ms[(begin - before) * _OWN : (end - before) * _OWN])
        return list(zip(flat[0::_OWN], flat[1::_OWN], flat[2::_OWN], flat[3::_OWN], strict=True))


def create_pulse_directory(run_id: str, attempt: int) -> Path:
    """A fresh directory in local shared memory (the temporary directory where there is none)."""
    base = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    directory = base / f"paceline-{run_id}-{attempt}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def remove_pulse_directory(directory: Path) -> None:
    """Removes a pulse directory; only one that `create_pulse_directory` can have made (a run.json can say anything)."""
    is_place = directory.parent in (_SHARED_MEMORY, Path(tempfile.gettempdir()))
    if is_place and _NAME.fullmatch(directory.name) and not directory.is_symlink():
        shutil.rmtree(directory, ignore_errors=True)


def find_pulse_directories() -> list[Path]:
    """Every directory of pulses on this machine, of whatever run."""
    places = (_SHARED_MEMORY, Path(tempfile.gettempdir()))
    found = (path for place in places for path in place.glob("paceline-*"))
    return sorted(path for path in found if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink())


def pulse_path(directory: Path, rank: int) -> Path:
    """Its file; a process that has it mapped into its memory is that rank's, or was forked by it."""
    return directory / f"rank_{rank:05d}"


def remote_pulses(directory: Path) -> Path:
    """Where the pulses lie that came from other hosts; beside this host's own, and removed with them."""
    return directory / _ELSEWHERE


class PulseWriter:
    """The writing side, one per rank; only its own thread may call `beat`."""

    def __init__(self, directory: Path, rank: int, attempt: int) -> None:
        descriptor = os.open(pulse_path(directory, rank), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        # The sequence number is stored as one machine word: `pack_into` zeroes its target first, and zero is even.
        self._words = memoryview(self._map).cast("q")
        self._numbers = memoryview(self._map).cast("d")
        self.step = 0
        self.phase = "start"
        self.enqueued = 0
        self.completed = 0
        self._steps = self._furthest = 0
        self.waits = 0
        self.waited_ms = 0.0
        self._sequence = 0
        self._entered = time.perf_counter()
        self._thread: ThreadTime | None = None
        self._ran_s = self._queued_s = 0.0
        self._own_s = [0.0] * _OWN
        self._last_own_s = self._own_s
        """idle in each of OWN_PHASES, queued; of the step under way, and of the one before"""
        self._words[_SEQUENCE_WORD] = 1
        _HEAD.pack_into(self._map, 0, _MAGIC, _VERSION, os.getpid(), rank, attempt)
        self.beat(0, "start")

    def tell_own(self) -> None:
        """From now on it also tells what a step is for this thread, the one that beats; a beat costs some three microseconds more."""
        self._thread = open_thread_time()
        if self._thread is not None:
            self._ran_s, self._queued_s = self._thread.read_s()

    def beat(self, step: int, phase: str) -> None:
        """Says: from now on this rank is in `phase` of `step`."""
        now = time.perf_counter()
        if self._thread is not None:
            self._count_own(self._thread.read_s(), now, step)
        if step > self._furthest:  # what comes between two steps may be told of the one before
            self._furthest = step
            self._steps += 1
        self._words[_SEQUENCE_WORD] = self._sequence + 1
        self._numbers[_SPENT_WORD + _PHASE_INDEX[self.phase]] += now - self._entered
        _MOVING.pack_into(
            self._map, _BODY_START, step, _PHASE_INDEX[phase], self._steps, time.time(), self.enqueued, self.completed
        )
        self.step, self.phase, self._entered = step, phase, now
        self._sequence += 2
        self._words[_SEQUENCE_WORD] = self._sequence

    def _count_own(self, thread_s: tuple[float, float], now: float, step: int) -> None:
        ran_s, queued_s = thread_s[0] - self._ran_s, thread_s[1] - self._queued_s
        self._ran_s, self._queued_s = thread_s
        if self.phase in OWN_PHASES:
            self._own_s[OWN_PHASES.index(self.phase)] += now - self._entered - ran_s - queued_s
            self._own_s[-1] += queued_s
        if step != self.step:
            self._last_own_s, self._own_s = self._own_s, [0.0] * _OWN

    def enqueue(self) -> None:
        """A collective was started. Each count is one word of its own, so that it is right while the rank waits for it."""
        self.enqueued += 1
        self._words[_ENQUEUED_WORD] = self.enqueued

    def complete(self) -> None:
        """The oldest collective under way has ended."""
        self.completed += 1
        self._words[_ENQUEUED_WORD + 1] = self.completed

    def wait(self, waited_ms: float) -> None:
        """In one step more, the last that has ended, this rank has waited so long for the others, in its backward."""
        self.waits += 1
        self.waited_ms += waited_ms
        self._words[_SEQUENCE_WORD] = self._sequence + 1
        self._words[_WAITS_WORD], self._numbers[_WAITS_WORD + 1] = self.waits, self.waited_ms
        place = (self.waits - 1) % _RECENT
        self._numbers[_RECENT_WORD + place] = waited_ms
        if self._thread is not None:
            for index, seconds in enumerate(self._last_own_s):
                others_ms = waited_ms if index == _BACKWARD else 0.0
                # Never less than nothing: while it waits for the others it may want a core, too. And 0 is what nobody has written.
                self._numbers[_OWN_WORD + place * _OWN + index] = max(_LEAST_MS, 1e3 * seconds - others_ms)
        self._sequence += 2
        self._words[_SEQUENCE_WORD] = self._sequence

    def spend(self, phase: str, seconds: float) -> None:
        """So long something of this phase took beside the training, which the training may have to wait for another time."""
        self._words[_SEQUENCE_WORD] = self._sequence + 1
        self._numbers[_SPENT_WORD + _PHASE_INDEX[phase]] += seconds
        self._sequence += 2
        self._words[_SEQUENCE_WORD] = self._sequence

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        self._numbers.release()
        self._words.release()
        self._map.close()


class PulseReader:
    """The reading side, for somebody who looks again and again: the file stays open, also when its directory has gone."""

    def __init__(self, directory: Path, rank: int) -> None:
        """OSError if there is no such file."""
        self._descriptor = os.open(pulse_path(directory, rank), os.O_RDONLY | os.O_CLOEXEC)
        self._sequence = b""
        self._counts = b""
        self._last: Pulse | None = None

    def read(self) -> Pulse | None:
        """The last pulse, the same object as long as the rank has written no other; None if there is none whole: a writer killed
        inside a write leaves an odd sequence."""
        for _ in range(_READS):
            data = os.pread(self._descriptor, _WHOLE, 0)
            if len(data) < _WHOLE:
                return None
            sequence = data[_HEAD.size : _BODY_START]
            if sequence == self._sequence and data[_COUNTS] == self._counts:
                return self._last
            again = os.pread(self._descriptor, _SEQUENCE.size, _HEAD.size)
            magic, version, pid, rank, attempt = _HEAD.unpack_from(data, 0)
            if magic != _MAGIC or version != _VERSION:
                return None
            # Whole only if no write began before the first reading had ended: the second one still has the same even number.
            if sequence[0] % 2 == 0 and sequence == again:
                self._sequence, self._counts = sequence, data[_COUNTS]
                self._last = _pulse(pid, rank, attempt, data)
                return self._last
            time.sleep(0.0002)
        return None

    def read_raw(self) -> bytes:
        """The last record as it is, for somebody who sends it on; empty if there is none whole."""
        for _ in range(_READS):
            data = os.pread(self._descriptor, _WHOLE, 0)
            sequence = data[_HEAD.size : _BODY_START]
            if len(data) < _WHOLE:
                return b""
            if sequence[0] % 2 == 0 and sequence == os.pread(self._descriptor, _SEQUENCE.size, _HEAD.size):
                return data
            time.sleep(0.0002)
        return b""

    @property
    def stored(self) -> int:
        """Of a pulse from another host: changes whenever one has come, be it the same as before."""
        return os.fstat(self._descriptor).st_mtime_ns

    def close(self) -> None:
        os.close(self._descriptor)


def raw_pulse(directory: Path, rank: int) -> bytes:
    """The record of a rank of this host, to be sent to another one; empty if there is none, or none whole at this moment."""
    try:
        reader = PulseReader(directory, rank)
    except OSError:
        return b""
    try:
        return reader.read_raw()
    finally:
        reader.close()


def store_remote_pulse(directory: Path, rank: int, data: bytes) -> bool:
    """Keeps a record that came from another host below this host's pulses, where a `PulseReader` of `remote_pulses(directory)` finds it.
    One writer per rank. False: it is no whole pulse of this rank, or there is no room for it; what was there before stays.

    It is written in place and under its sequence number, like a rank's own: readers keep their file open, and never see half of one.
    """
    if len(data) != _WHOLE or data[_HEAD.size] % 2 or _HEAD.unpack_from(data)[:2] != (_MAGIC, _VERSION):
        return False
    if _HEAD.unpack_from(data)[3] != rank:
        return False
    try:
        remote_pulses(directory).mkdir(mode=0o700, exist_ok=True)
        path = pulse_path(remote_pulses(directory), rank)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        os.posix_fallocate(descriptor, 0, _SIZE)  # no room is found out before anything is changed
        (before,) = _SEQUENCE.unpack(os.pread(descriptor, _SEQUENCE.size, _HEAD.size))
        os.pwrite(descriptor, _SEQUENCE.pack(before | 1), _HEAD.size)
        os.pwrite(descriptor, data[: _HEAD.size], 0)
        os.pwrite(descriptor, data[_BODY_START:], _BODY_START)
        os.pwrite(descriptor, data[_HEAD.size : _BODY_START], _HEAD.size)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _pulse(pid: int, rank: int, attempt: int, data: bytes) -> Pulse:
    step, phase, steps, since, enqueued, completed, waits, waited_ms, *spent = _FIXED.unpack_from(data, _BODY_START)
    name = PHASES[phase] if 0 <= phase < len(PHASES) else "unknown"
    spent_s = {known: seconds for known, seconds in zip(PHASES, spent, strict=True) if seconds}
    recent = _unroll(data[_RECENT_WORD * 8 : _OWN_WORD * 8], waits, 8)
    own = _unroll(data[_OWN_WORD * 8 :], waits, 8 * _OWN)
    own = own if any(own[-_OWN:]) else ()
    return Pulse(
        rank, pid, attempt, step, name, since, enqueued, completed, waits, waited_ms, spent_s, steps, recent, own
    )


def _unroll(ring: bytes, num: int, width: int) -> Sequence[float]:
    """What a ring of entries of `width` bytes remembers of `num` of them, the newest last. As bytes, of which whoever needs some makes
    numbers: at most looks there are few new ones among hundreds."""
    if num <= 0:
        return ()
    newest = num % _RECENT * width
    return memoryview((ring[newest:] + ring[:newest])[-min(num, _RECENT) * width :]).cast("d")


def read_pulse(directory: Path, rank: int) -> Pulse | None:
    """The rank's last pulse, or None if there is none, or none whole."""
    try:
        reader = PulseReader(directory, rank)
    except OSError:
        return None
    try:
        return reader.read()
    finally:
        reader.close()


def read_pulses(directory: Path) -> list[Pulse]:
    """The last pulse of every rank that has one there."""
    ranks = (path.name.removeprefix("rank_") for path in sorted(directory.glob("rank_*")))
    pulses = (read_pulse(directory, int(rank)) for rank in ranks if rank.isdecimal())
    return [pulse for pulse in pulses if pulse is not None]
