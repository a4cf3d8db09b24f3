"""Durable small files: atomic replacement, JSON lines that survive a torn tail, locks, and errors with a remedy.

with storage_errors("runs/a"):
    write_json(path, {"state": "running"})      # whole or not there
append = LineWriter(path); append.write('{"step": 1}')
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError, StorageError, UsageError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FULL_WAIT_S = 1.0
_KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of <linux/falloc.h>"""
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


def storage_error(error: OSError, path: str | Path, option: str = "--out DIR") -> PacelineError:
    """The typed error for a failed write below `path`, which `option` chooses."""
    where = str(error.filename or path)
    if error.errno in _FULL:
        return StorageError("the disk is full", where, f"free some space, or choose another place with {option}")
    if error.errno in _FORBIDDEN:
        return UsageError(
            f"cannot write there ({os.strerror(error.errno or 0)})", where, f"choose a writable place with {option}"
        )
    if error.errno == errno.ENAMETOOLONG:
        return UsageError("the name is too long", where, f"choose a shorter one with {option}")
    if error.errno in {errno.ENOTDIR, errno.EEXIST}:
        return UsageError("a file stands where a directory is needed", where, f"choose another place with {option}")
    return StorageError(
        f"cannot write ({error.strerror or error})", where, f"check the disk, or choose another {option}"
    )


@contextlib.contextmanager
def storage_errors(path: str | Path, option: str = "--out DIR") -> Iterator[None]:
    """Turns an OSError raised inside into the typed error for `path`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path, option) from error


def write_text(path: str | Path, text: str, *, room: int = 0) -> None:
    """Replaces `path` atomically: readers see the old content or the new one, never a part.

    Bytes of an argument or a file name that are no UTF-8 are written as their escape. `room`: so many bytes more stay the file's own where the
    file system can do that, so that overwrite_text fits into it on a full disk.
    """
    write_bytes(path, text.encode(errors="backslashreplace"), room=room)


def write_bytes(path: str | Path, content: bytes, *, is_synced: bool = True, room: int = 0) -> None:
    """The same for bytes. Not synced, a file may be empty or in part after a power failure, though never after a kill."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")
    rest = memoryview(content)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if room:
                _reserve(descriptor, len(content) + room)
            if is_synced:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def overwrite_text(path: str | Path, text: str) -> None:
    """In the place of what `path` holds, for where there is no room beside it. Where it does not fit there either, an OSError, and what it held.

    Whoever reads just then may see a part of each.
    """
    content = text.encode(errors="backslashreplace")
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        try:
            # Nothing of the old content is lost before there is room for all of the new one; what the file has, nobody else can take.
            os.posix_fallocate(descriptor, 0, len(content))
        except OSError:
            os.ftruncate(descriptor, size)
            raise
        place = 0
        while place < len(content):
            place += os.pwrite(descriptor, content[place:], place)
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reserve(descriptor: int, size: int) -> None:
    """Room for a file of that size, whose size stays what it is; nothing where the file system cannot."""
    if sys.platform == "linux":
        ctypes.CDLL(None).fallocate(descriptor, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size))


def sync_file_system(path: str | Path) -> None:
    """Everything that was written to the file system of `path`, by anybody, is on the disk after this."""
    if sys.platform != "linux":
        os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


class LineWriter:
    """Appends whole lines to a file that several processes may share; a torn tail of a killed writer is closed off first."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = str(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._descriptor).st_size
        self.is_empty = size == 0
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")

    def write(self, line: str) -> None:
        data = line.encode(errors="backslashreplace") + b"\n"
        deadline = time.monotonic() + _FULL_WAIT_S
        while not self._append(data):
            # Full for a moment only, perhaps: a checkpoint that does not fit is taken away again.
            if time.monotonic() > deadline:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            time.sleep(0.05)

    def _append(self, data: bytes) -> bool:
        """Whether there was room. One write per line, so that readers and other writers never see half of it."""
        # A lock of this process alone: one of flock's lives on in a process that was forked meanwhile, if we are killed.
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            written = os.write(self._descriptor, data)
            if written != len(data):
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
            return written == len(data)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def write_record(self, record: dict[str, Any]) -> None:
        """One JSON line; a number that is not finite becomes null, because JSON has none."""
        try:
            text = json.dumps(record, default=str, separators=(",", ":"), allow_nan=False)
        except ValueError:
            text = json.dumps(finite(record), default=str, separators=(",", ":"))
        self.write(text)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def finite(value: Any) -> Any:
    """The same, with null for every number that is not finite: JSON has none."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_records(path: Path) -> list[dict[str, Any]]:
    """All whole JSON lines of a file; a torn or damaged line is passed over, a missing file is empty."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return _records(file)
    except FileNotFoundError:
        return []


def read_last_records(path: Path, num_bytes: int = 1 << 16) -> list[dict[str, Any]]:
    """The same of the end of a file that may be long: the whole JSON lines in its last `num_bytes`."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - num_bytes))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return _records(text.splitlines())  # a first line that was cut is damaged like any other


def _records(lines: Iterable[str]) -> list[dict[str, Any]]:
    records = (_record(line) for line in lines)
    return [record for record in records if record is not None]


def _record(line: str) -> dict[str, Any] | None:
    # Beside what is no JSON: a number of thousands of digits, brackets without end.
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict):
            return record
    return None


def find_damaged_records(path: Path) -> list[int]:
    """The numbers of the lines that `read_records` passes over; blank ones are none."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return [number for number, line in enumerate(file, 1) if line.strip() and _record(line) is None]


class Lock:
    """An advisory lock on a file, held until `release` or the end of the process and of what it forked while it held it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def acquire(self, *, shared: bool = False) -> bool:
        """Takes the lock without waiting; False if somebody else holds it in a way that conflicts."""
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire_within(self, seconds: float) -> bool:
        """Takes the lock as soon as it is free; False if it was not in that time."""
        deadline = time.monotonic() + seconds
        while not self.acquire():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def release(self) -> None:
        if self._descriptor >= 0:
            # Not by closing alone: what was forked meanwhile has the descriptor, too.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1


def identify_file(path: str | Path) -> tuple[int, ...] | None:
    """What tells one version of a file from the next; None: there is none."""
    try:
        # Opened, not only looked at: on a network file system that asks the server.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def is_locked(path: Path, *, shared: bool = True) -> bool | None:
    """Whether somebody holds it alone, or with `shared=False` in any way; None where it cannot be told: there is no lock, or it must not be touched (a read-only copy)."""
    lock = Lock(path)
    try:
        return not lock.acquire(shared=shared) if path.exists() else None
    except OSError:
        return None
    finally:
        lock.release()


def sha256_of(file: Path) -> str:
    """The digest of a file's content."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
