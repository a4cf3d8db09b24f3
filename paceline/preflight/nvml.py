"""What NVIDIA's driver says about each GPU at this moment. `fake_nvml.py` has a driver for tests.

read_gpus()   -> [GpuReading(index=0, name='NVIDIA H200', total_gib=139.8, free_gib=139.1, processes=((4711, 1.5),), …)]
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_GIB = 2**30
_SLOWDOWNS = {
    "HwSlowdown": "the hardware slows it down",
    "SwThermalSlowdown": "it is too hot (software slowdown)",
    "HwThermalSlowdown": "it is too hot (hardware slowdown)",
    "HwPowerBrakeSlowdown": "the power supply asks it to slow down",
}
"""reasons for a lower clock that a healthy GPU does not have; idle, and a power cap under load, are no fault"""


@dataclass(frozen=True)
class GpuReading:
    """One GPU; what it does not support is None or empty."""

    index: int
    uuid: str
    name: str
    total_gib: float
    free_gib: float
    processes: tuple[tuple[int, float | None], ...] = ()
    """(pid, GiB) of every process that computes on it"""
    slowdowns: tuple[str, ...] = ()
    """why it runs slower than it could"""
    uncorrected_errors: int | None = None
    """ECC, since the driver was loaded"""
    needs_reset: bool = False
    """rows of its memory wait for a reset to be replaced"""
    is_worn_out: bool = False
    """rows of its memory could not be replaced"""
    mode: str = "default"
    """default, exclusive (one process), or prohibited (none)"""
    silence: str = ""
    """why nothing else is known: the driver lists it, and gets no answer from it"""


@contextlib.contextmanager
def _open(nvml: Any) -> Iterator[bool]:
    """Whether the driver answers, inside."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        nvml.nvmlShutdown()


def load_nvml() -> Any:
    """The real one."""
    import pynvml

    return pynvml


def read_gpus(nvml: Any) -> list[GpuReading]:
    """Every GPU of the machine; empty where no driver answers."""
    with _open(nvml) as is_there:
        return [_read_or_miss(nvml, index) for index in range(nvml.nvmlDeviceGetCount())] if is_there else []


def read_driver(nvml: Any) -> tuple[str, tuple[int, int]] | None:
    """(version of the driver, newest CUDA that it runs); None where none answers."""
    with _open(nvml) as is_there:
        if not is_there:
            return None
        cuda = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
        return _text(nvml.nvmlSystemGetDriverVersion()), (cuda // 1000, cuda % 1000 // 10)


def _read_or_miss(nvml: Any, index: int) -> GpuReading:
    try:
        return _read(nvml, index)
    except nvml.NVMLError as error:
        return GpuReading(index, "", "?", 0.0, 0.0, silence=str(error))


def _read(nvml: Any, index: int) -> GpuReading:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)

    def ask(name: str, *arguments: Any) -> Any:
        """None where this GPU or this driver does not know."""
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            return getattr(nvml, name)(handle, *arguments)
        return None

    rows = ask("nvmlDeviceGetRemappedRows")  # (correctable, uncorrectable, pending, failed)
    errors = ask("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    modes = {nvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited", nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive"}
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons") or 0
    running = ask("nvmlDeviceGetComputeRunningProcesses") or ()
    return GpuReading(
        index,
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _text(nvml.nvmlDeviceGetName(handle)),
        memory.total / _GIB,
        memory.free / _GIB,
        tuple((one.pid, one.usedGpuMemory / _GIB if one.usedGpuMemory else None) for one in running),
        tuple(text for name, text in _SLOWDOWNS.items() if reasons & getattr(nvml, f"nvmlClocksEventReason{name}")),
        None if errors is None else int(errors),
        bool(rows and rows[2]),
        bool(rows and rows[3]),
        modes.get(ask("nvmlDeviceGetComputeMode"), "default"),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
