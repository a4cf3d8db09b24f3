"""How much faster a winner has to be than its baseline, where nobody gave a number: by the compute capability of the GPUs.

choose_speed_up("auto")   -> (0.08, "default from compute capability 8.0 on: GPU 0 has 9.0")

Below 8.0 a good configuration gains much (no bf16, small caches), so less than 20 % is not worth a change; from 8.0 on 8 % is.
"""

from __future__ import annotations

from typing import Any

from paceline.preflight.nvml import load_nvml

BORDER = 8.0
BELOW, FROM = 0.20, 0.08


def choose_speed_up(wanted: float | str, capability: tuple[float, str] | None = None) -> tuple[float, str]:
    """(share, why); `capability` is found out where it is not given."""
    if wanted != "auto":
        return float(wanted), "as asked for: min_speed_up"
    found = capability if capability is not None else lowest_capability()
    if found is None:
        return BELOW, f"default below compute capability {BORDER:g}, which holds where there is no GPU"
    number, name = found
    if number < BORDER:
        return BELOW, f"default below compute capability {BORDER:g}: {name} has {number:g}"
    return FROM, f"default from compute capability {BORDER:g} on: {name} has {number:g}"


def lowest_capability(driver: Any = None) -> tuple[float, str] | None:
    """(capability, GPU) of the least capable GPU here; None where there is none. `driver` stands for NVIDIA's in a test."""
    nvml = driver or load_nvml()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(nvml.nvmlDeviceGetHandleByIndex(index))
            found.append((major + minor / 10, f"GPU {index}"))
        return min(found, default=None)
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()
