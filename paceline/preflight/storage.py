"""The run directory's file system: can it be written, does it have room for the checkpoints, and how fast is it?

room   96.3 GiB free; checkpoints take 1.1 GiB: 6 × 0.19 (3 kept, best, final, one being written)
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from paceline.config.sections import Optimizer
from paceline.errors import PacelineError
from paceline.files import storage_error
from paceline.preflight.check import Check, fail, from_problems, ok, warn
from paceline.preflight.subject import Subject
from paceline.telemetry.checkpoints import SPARE_BYTES, list_checkpoints, read_checkpoint
from paceline.telemetry.layout import RunLayout

_GIB, _MIB = 2**30, 2**20
_PIECE = 4 * _MIB
_MOST = 64 * _MIB
_WRITE_S, _READ_S = 0.5, 0.3
_SLOW_SAVE_S = 60.0
_SLOW_MIB_S = 20.0
_SOME_ROOM = 256 * _MIB
"""without any checkpoint: logs, metrics, TensorBoard"""
_FEW_FILES = 1000


def check_storage(subject: Subject) -> list[Check]:
    """Everything, with a measurement that writes up to 64 MiB and leaves nothing."""
    place = existing_place(subject.root)
    try:
        write_s_per_mib, read_s_per_mib = measure_speed(place)
    except OSError as error:
        return from_problems("run directory", storage_error(error, place).problems)
    size = checkpoint_bytes(subject)
    return [
        ok("run directory", f"{subject.root} can be written"),
        *check_room(subject),
        _write_speed(1 / write_s_per_mib, size),
        ok("read speed", f"{_rate(1 / read_s_per_mib)}, measured there", mib_per_s=round(1 / read_s_per_mib, 1)),
    ]


def check_room(subject: Subject) -> list[Check]:
    """The room alone, without writing anything."""
    place = existing_place(subject.root)
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    values = {"free_bytes": free, "place": str(place)}
    checks = [_room(subject, free, values)]
    if found.f_files and found.f_favail < _FEW_FILES:
        what = f"{found.f_favail:,} more files can be made at {place}"
        checks.append(warn("files", what, "remove files there, or choose another --out DIR"))
    return checks


def _room(subject: Subject, free: int, values: dict[str, object]) -> Check:
    about, do = f"{_size(free)} free", "free some space, or choose another place with --out DIR"
    if not subject.config.checkpoint.enabled:
        return _without_checkpoints(about + "; no checkpoints are written", free, do, values)
    size = checkpoint_bytes(subject)
    if size is None:
        known = "the size of a checkpoint is not known before the model is"
        return _without_checkpoints(f"{about}; {known}", free, do, values)
    count = subject.config.checkpoint.keep + 3
    there = _checkpoints_there(subject)
    needed = max(0, count * size - there)
    kept = f"{count} × {_size(size)} ({subject.config.checkpoint.keep} kept, best, final, one being written)"
    have = f", {_size(there)} of them there already" if there else ""
    about = f"{about}; checkpoints take {_size(count * size)}: {kept}{have}"
    values |= {"checkpoint_bytes": size, "needed_bytes": needed}
    if free < size + SPARE_BYTES:
        return fail("room", f"{about}; not even one fits", do, **values)
    if free < needed:
        return warn("room", about, f"checkpoint.keep=1, {do}", **values)
    return ok("room", about, **values)


def _without_checkpoints(about: str, free: int, do: str, values: dict[str, object]) -> Check:
    return warn("room", about, do, **values) if free < _SOME_ROOM else ok("room", about, **values)


def checkpoint_bytes(subject: Subject) -> int | None:
    """What one checkpoint takes: parameters and the optimizer's moments in fp32, or what the run's newest one has; None if unknown."""
    if subject.sizes is not None:
        return int(subject.sizes["num_parameters"]) * 4 * (1 + _num_moments(subject.config.train.optimizer))
    with contextlib.suppress(OSError, PacelineError, StopIteration):
        newest = next(iter(list_checkpoints(RunLayout(subject.root).checkpoints)))
        return sum(entry.bytes for entry in read_checkpoint(newest).manifest.files.values())
    return None


def _num_moments(optimizer: Optimizer) -> int:
    """Numbers that a checkpoint has per weight besides the weight."""
    average = 0 if optimizer.ema is None else 1
    if optimizer.name == "sgd":
        return average + (1 if optimizer.momentum else 0)
    return average + 2


def _checkpoints_there(subject: Subject) -> int:
    """Bytes of this run's checkpoints: newer ones take their place."""
    found = 0
    for path in RunLayout(subject.root).checkpoints.glob("*/*"):
        with contextlib.suppress(OSError):
            found += 0 if path.parent.is_symlink() else path.stat().st_size
    return found


def existing_place(root: Path) -> Path:
    """The directory itself, or the nearest one above it that is there; what is in the way stays in the way."""
    return next(path for path in (root, *root.parents) if path.exists() or path.is_symlink())


def measure_speed(place: Path) -> tuple[float, float]:
    """Seconds per MiB, written to the disk and read back from it; OSError where it cannot be written."""
    path = place / f".paceline-preflight-{os.getpid()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.unlink(path)  # at once: whatever happens, nothing is left
        free = os.fstatvfs(descriptor)
        # Never more than a quarter of what is left, at least a block: a full disk says so, and others have room meanwhile.
        most = max(free.f_frsize, min(_MOST, free.f_bavail * free.f_frsize // 4))
        piece = os.urandom(min(_PIECE, most))
        began, written = time.monotonic(), 0
        while written < most and (not written or time.monotonic() - began < _WRITE_S):
            done = os.write(descriptor, piece)
            os.fdatasync(descriptor)
            written += done
        write_s = time.monotonic() - began
        # Out of the page cache, so that the disk is asked; a file system in memory has none and pays no attention.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        began, read = time.monotonic(), 0
        while read < written and (not read or time.monotonic() - began < _READ_S):
            read += len(os.pread(descriptor, _PIECE, read))
        return write_s * _MIB / written, (time.monotonic() - began) * _MIB / read
    finally:
        os.close(descriptor)


def _write_speed(mib_per_s: float, size: int | None) -> Check:
    values = {"mib_per_s": round(mib_per_s, 1)}
    about = f"{_rate(mib_per_s)}, measured there"
    do = "choose a faster place with --out DIR, or save less often (checkpoint.every_steps, checkpoint.every_epochs)"
    if size is not None:
        save_s = size / _MIB / mib_per_s
        values["save_s"] = round(save_s, 1)
        about += f": a checkpoint takes {f'{save_s:.1f}' if save_s >= 0.1 else 'under 0.1'} s"
        if save_s > _SLOW_SAVE_S:
            return warn("write speed", about, do, **values)
    elif mib_per_s < _SLOW_MIB_S:
        return warn("write speed", about, do, **values)
    return ok("write speed", about, **values)


def _rate(mib_per_s: float) -> str:
    return f"{mib_per_s:,.0f} MiB/s"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB / 10 else f"{num_bytes / _MIB:.1f} MiB"
