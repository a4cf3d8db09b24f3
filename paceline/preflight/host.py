"""The machine around the GPUs: memory, shared memory, open files, cores."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

import psutil

from paceline.cores import cpu_count
from paceline.preflight.check import Check, fail, ok, warn
from paceline.preflight.subject import Subject

_GIB, _MIB = 2**30, 2**20
_RANK_GIB = 0.5
"""resident memory of a rank that has imported torch and has a small model"""
_LOADER_GIB = 0.2
_PULSE_BYTES = 4096
_LOADER_SHARED = 64 * _MIB
"""room in shared memory for the batches one loader process prepares ahead"""
_NCCL_SHARED = 32 * _MIB
_FEWEST_FILES = 24
"""measured on 2026-11-15: with 24 descriptors 2 ranks do not start, with 28 they do"""
_FILES = 1024


def check_host(subject: Subject) -> list[Check]:
    return [_memory(subject), _shared_memory(subject), _open_files(), _cores(subject)]


def _memory(subject: Subject) -> Check:
    available = available_bytes() / _GIB
    needed = subject.world_size * _RANK_GIB + subject.num_loaders * _LOADER_GIB
    values = {"available_gib": round(available, 2), "needed_gib": round(needed, 2)}
    about = f"{available:.1f} GiB free"
    if available < needed:
        ranks = f"{subject.world_size} ranks and {subject.num_loaders} loader processes"
        what = f"{about}, and {ranks} take about {needed:.1f}"
        return warn("memory", what, "end other programs, or use fewer --nproc or data.num_workers", **values)
    return ok("memory", about, **values)


def available_bytes() -> int:
    """Memory that can be had: the machine's, or what is left of the control group's limit where that is less."""
    available = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        path = next(line.split(":", 2)[2] for line in lines if line.startswith("0::"))
        group = Path("/sys/fs/cgroup") / path.lstrip("/")
        for folder in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):
                limit = int((folder / "memory.max").read_text())  # "max" where there is none
                available = min(available, max(0, limit - int((folder / "memory.current").read_text())))
            if folder == Path("/sys/fs/cgroup"):
                break
    return available


def _shared_memory(subject: Subject, place: Path = Path("/dev/shm")) -> Check:
    needs = subject.num_loaders
    try:
        found = os.statvfs(place)
        is_writable = os.access(place, os.W_OK)
    except OSError:
        is_writable = False
    if not is_writable:
        what = f"{place} is missing, or may not be written"
        if needs:
            do = f"mount a tmpfs at {place}, or set data.num_workers=0"
            return fail("shared memory", f"{what}: loader processes hand over batches there", do)
        return warn("shared memory", f"{what}: pulses go to the temporary directory", f"mount a tmpfs at {place}")
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    values = {"free_bytes": free, "total_bytes": total}
    about = f"{_size(free)} of {_size(total)} free in {place}"
    pulses = subject.world_size * _PULSE_BYTES
    wanted = pulses + needs * _LOADER_SHARED + (subject.world_size * _NCCL_SHARED if subject.num_gpus > 1 else 0)
    if free < pulses:
        what = f"{about}, and the pulses of {subject.world_size} ranks need {_size(pulses)}"
        return fail("shared memory", what, f"remove what fills it (ls -lS {place})", **values)
    if free < wanted:
        what = f"{about}; {_size(wanted)} are wanted ({needs} loader processes, {subject.num_gpus} GPUs)"
        return warn("shared memory", what, "start the container with --shm-size=8g, or remove what fills it", **values)
    return ok("shared memory", about, **values)


def _open_files() -> Check:
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    values = {"limit": limit, "hard_limit": hard}
    if limit == resource.RLIM_INFINITY:
        return ok("open files", "no limit", **values)
    about = f"{limit:,} per process"
    can_raise = hard == resource.RLIM_INFINITY or hard >= _FILES
    do = f"ulimit -n {_FILES if hard == resource.RLIM_INFINITY else hard}"
    if not can_raise:
        do = f"raise the hard limit, which is {hard:,} (LimitNOFILE, limits.conf, docker --ulimit nofile={_FILES})"
    if limit <= _FEWEST_FILES:
        return fail("open files", f"{about}; no rank starts with {_FEWEST_FILES} or fewer", do, **values)
    if limit < _FILES:
        return warn("open files", f"{about}; loader processes and many ranks want {_FILES:,}", do, **values)
    return ok("open files", about, **values)


def _cores(subject: Subject) -> Check:
    cores, ranks, loaders = cpu_count(), subject.world_size, subject.num_loaders
    values = {"cores": cores, "ranks": ranks, "loaders": loaders}
    about = f"{cores} for {_count(ranks, 'rank')}" + (f" and {_count(loaders, 'loader process')}" if loaders else "")
    if ranks > cores:
        return warn("cores", about, f"--nproc {cores} at most", **values)
    if loaders and ranks + loaders > cores:
        fewer = max(0, cores // ranks - 1)
        do = f"data.num_workers={fewer}, or more cores"
        return warn("cores", f"{about}: they take turns", do, **values)
    return ok("cores", about, **values)


def _count(number: int, noun: str) -> str:
    many = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else many}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB else f"{num_bytes / _MIB:.1f} MiB"
