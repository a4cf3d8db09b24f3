"""A driver for tests, with the functions of pynvml that `nvml.py` calls: GPUs in any state, without one in the machine.

FakeNvml([FakeGpu(used_gib=130, processes={4711: 129.5})], driver="580.65", cuda=13000)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

_GIB = 2**30


@dataclass(frozen=True)
class FakeGpu:
    """One GPU and its state."""

    name: str = "NVIDIA H200"
    total_gib: float = 140.0
    used_gib: float = 0.6
    processes: Mapping[int, float] = field(default_factory=dict)
    """pid -> GiB"""
    reasons: int = 1
    """bits of nvmlClocksEventReason…; 1 is idle"""
    ecc_errors: int | None = 0
    """None: this GPU has no ECC"""
    remapped: tuple[int, int, bool, bool] = (0, 0, False, False)
    mode: int = 0
    is_lost: bool = False
    """it has fallen off the bus"""


class FakeNvml:
    """Handed in where the module `pynvml` is expected."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_COMPUTEMODE_PROHIBITED = 2
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3
    nvmlClocksEventReasonHwSlowdown = 0x08
    nvmlClocksEventReasonSwThermalSlowdown = 0x20
    nvmlClocksEventReasonHwThermalSlowdown = 0x40
    nvmlClocksEventReasonHwPowerBrakeSlowdown = 0x80

    class NVMLError(Exception):
        pass

    def __init__(self, gpus: Sequence[FakeGpu] = (), driver: str | None = "580.65.06", cuda: int = 13000) -> None:
        """`driver` None: no driver answers. `cuda`: the newest it runs, 1000 × major + 10 × minor."""
        self._gpus, self._driver, self._cuda = gpus, driver, cuda

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The functions, each of the place of a GPU in the list, which is its handle."""
        answers: dict[str, Callable[..., Any]] = {
            "nvmlShutdown": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: self._driver,
            "nvmlSystemGetCudaDriverVersion_v2": lambda: self._cuda,
            "nvmlDeviceGetCount": lambda: len(self._gpus),
            "nvmlDeviceGetUUID": lambda index: f"GPU-{index:08x}",
            "nvmlDeviceGetName": lambda index: self._gpus[index].name,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda index: self._gpus[index].reasons,
            "nvmlDeviceGetRemappedRows": lambda index: self._gpus[index].remapped,
            "nvmlDeviceGetComputeMode": lambda index: self._gpus[index].mode,
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]

    def nvmlInit(self) -> None:
        if self._driver is None:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self._gpus[index].is_lost:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetMemoryInfo(self, index: int) -> Any:
        gpu = self._gpus[index]
        return SimpleNamespace(total=gpu.total_gib * _GIB, free=(gpu.total_gib - gpu.used_gib) * _GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, index: int) -> list[Any]:
        running = self._gpus[index].processes.items()
        return [SimpleNamespace(pid=pid, usedGpuMemory=int(used * _GIB)) for pid, used in running]

    def nvmlDeviceGetTotalEccErrors(self, index: int, kind: int, counter: int) -> int:
        errors = self._gpus[index].ecc_errors
        if errors is None or (kind, counter) != (1, 0):
            raise self.NVMLError("Not Supported")
        return errors
