"""The GPUs that the ranks will get: memory that is free, who else computes on them, what slows them down, broken memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from paceline.preflight.check import Check, fail, ok, warn
from paceline.preflight.nvml import GpuReading, load_nvml, read_gpus
from paceline.preflight.subject import Subject

_CONTEXT_GIB = 0.5
"""what torch's CUDA context takes by itself on a current GPU: with less than this no rank starts"""
_USED_SHARE = 0.1
"""of a GPU's memory in use by others, before it is worth a warning"""
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_UNKNOWN = "?"


def check_gpus(subject: Subject, nvml: Any = None, bus: Path = Path("/sys/bus/pci/devices")) -> list[Check]:
    """One line on what there is, then one per thing that is wrong with a GPU."""
    readings = read_gpus(nvml or load_nvml())
    silent = [reading for reading in readings if reading.silence]
    if silent and subject.config.launch.gpus != []:
        return [_lost(reading) for reading in silent]
    if not subject.num_gpus:
        return [_without(subject, readings, bus)]
    chosen = [reading for token in subject.placement.visible for reading in readings if _is_meant(token, reading)]
    if not chosen:
        return [ok("GPUs", f"{subject.num_gpus} (slices of a GPU, which the driver does not describe)")]
    found = [problem for reading in chosen for problem in _problems(reading, subject.world_size > len(chosen))]
    names = ", ".join(dict.fromkeys(f"{reading.name} {reading.total_gib:.0f} GiB" for reading in chosen))
    free = min(reading.free_gib for reading in chosen)
    values = {"indices": [reading.index for reading in chosen], "least_free_gib": round(free, 2)}
    kinds = {reading.name for reading in chosen}
    if len(kinds) > 1:
        found.append(warn("GPUs alike", f"they differ: {names}", "leave the slower ones out with --gpus"))
    return [ok("GPUs", f"{len(chosen)}: {names}, at least {free:.1f} GiB free", **values), *found]


def _lost(reading: GpuReading) -> Check:
    """The launcher's list of GPUs is empty then: it trains on the CPU, which nobody has asked for."""
    what = f"it does not answer ({reading.silence}); beside it no GPU is found, and the CPU trains"
    do = "see dmesg (Xid); reset it (nvidia-smi --gpu-reset), or restart the machine"
    return warn(f"GPU {reading.index}", what, do, index=reading.index)


def _without(subject: Subject, readings: list[GpuReading], bus: Path) -> Check:
    if subject.config.launch.gpus == []:
        return ok("GPUs", "launch.gpus=[]: the CPU trains")
    if readings:
        hidden = subject.environment.get("CUDA_VISIBLE_DEVICES", "")
        what = f"{len(readings)} in the machine, none visible (CUDA_VISIBLE_DEVICES={hidden!r}): the CPU trains"
        return warn("GPUs", what, "unset CUDA_VISIBLE_DEVICES, or name GPUs in it")
    if _is_on_bus(bus):
        what = "an NVIDIA GPU is in the machine, and its driver does not answer: the CPU trains"
        return warn("GPUs", what, "see what nvidia-smi and dmesg say; in a container, start it with the GPUs")
    return ok("GPUs", "none: the CPU trains")


def _is_on_bus(bus: Path) -> bool:
    for vendor in bus.glob("*/vendor"):
        with contextlib.suppress(OSError):
            kind = vendor.with_name("class").read_text()
            if vendor.read_text().strip() == _NVIDIA and kind.startswith(_DISPLAY):
                return True
    return False


def _is_meant(token: str, reading: GpuReading) -> bool:
    return str(reading.index) == token or (token.startswith("GPU-") and reading.uuid.startswith(token))


def _problems(reading: GpuReading, is_shared: bool) -> Iterator[Check]:
    others, own_gib = _others(reading)
    who = ", ".join(others) if others else "processes that cannot be seen from here"
    about = f"GPU {reading.index}"
    free_gib = reading.free_gib + own_gib  # ranks of ours may have begun to take it
    used = 1 - free_gib / reading.total_gib
    values = {"index": reading.index, "free_gib": round(free_gib, 2)}
    if free_gib < _CONTEXT_GIB:
        what = f"{free_gib:.2f} GiB free, and a CUDA context alone takes {_CONTEXT_GIB}: {who}"
        yield fail(f"{about} memory", what, f"end them, or leave GPU {reading.index} out with --gpus", **values)
    elif used > _USED_SHARE:
        what = f"{free_gib:.1f} of {reading.total_gib:.1f} GiB free; in use by {who}"
        yield warn(f"{about} memory", what, f"end them, or leave GPU {reading.index} out with --gpus", **values)
    elif others:
        what = f"{who} computes there, too"
        yield warn(f"{about} processes", what, f"end them, or leave GPU {reading.index} out with --gpus", **values)
    yield from _mode(reading, others, is_shared)
    if reading.slowdowns:
        do = "see nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; mend cooling or power"
        yield warn(f"{about} clocks", "; ".join(reading.slowdowns), do, index=reading.index)
    if reading.is_worn_out:
        what = "memory rows that failed could not be replaced"
        yield warn(f"{about} ECC", what, "have this GPU replaced", index=reading.index)
    elif reading.needs_reset:
        what = "memory rows that failed wait to be replaced"
        yield warn(f"{about} ECC", what, f"nvidia-smi --gpu-reset -i {reading.index}", index=reading.index)
    elif reading.uncorrected_errors:
        what = f"{reading.uncorrected_errors} uncorrected memory errors since the driver was loaded"
        yield warn(f"{about} ECC", what, f"nvidia-smi --gpu-reset -i {reading.index}; watch it", index=reading.index)


def _mode(reading: GpuReading, others: list[str], is_shared: bool) -> Iterator[Check]:
    about = f"GPU {reading.index} mode"
    do = f"nvidia-smi -c DEFAULT -i {reading.index}"
    if reading.mode == "prohibited":
        yield fail(about, "its mode lets nobody compute", do)
    elif reading.mode == "exclusive" and others and all(_UNKNOWN in other for other in others):
        what = f"its mode allows one process, and there is one that cannot be seen from here: {', '.join(others)}"
        yield warn(about, what, do)  # in a container it may be a rank of ours, under another number
    elif reading.mode == "exclusive" and others:
        yield fail(about, f"its mode allows one process, and there is one: {', '.join(others)}", do)
    elif reading.mode == "exclusive" and is_shared:
        yield fail(about, "its mode allows one process, and several ranks would share it", f"{do}, or fewer --nproc")


def _others(reading: GpuReading) -> tuple[list[str], float]:
    """Processes on this GPU, as a person knows them, without our own; and what our own have of its memory, in GiB."""
    found, own_gib = [], 0.0
    for pid, used in reading.processes:
        name = _UNKNOWN
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if os.getpid() in (pid, *(parent.pid for parent in process.parents())):
                own_gib += used or 0.0
                continue
            name = process.name()
        found.append(f"pid {pid} ({name}{f', {used:.1f} GiB' if used else ''})")
    return found, own_gib
