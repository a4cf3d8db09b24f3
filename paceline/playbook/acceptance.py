"""How much faster a winner has to be than its baseline, where nobody gave a number: by the compute capability of the GPUs it may see.

choose_speed_up("auto")   -> (0.08, "default from compute capability 8.0 on: GPU 0 has 9.0")

Below 8.0 a good configuration gains much (no bf16, small caches), so less than 20 % is not worth a change; from 8.0 on 8 % is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.launch.hardware import Gpu, visible_tokens
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


def lowest_capability(driver: Any = None, environment: Mapping[str, str] | None = None) -> tuple[float, str] | None:
    """(capability, GPU) of the least capable GPU that a program may see here; None where there is none.

    `driver` stands for NVIDIA's in a test, `environment` for this process's.
    """
    nvml = driver or load_nvml()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        found = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            gpu = Gpu(index, uuid.decode() if isinstance(uuid, bytes) else uuid, "", 0.0)
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            found[gpu] = (major + minor / 10, f"GPU {index}")
        tokens = visible_tokens(list(found), os.environ if environment is None else environment)
        return min((found[gpu] for gpu in found if _is_visible(gpu, tokens)), default=None)
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _is_visible(gpu: Gpu, tokens: Sequence[str]) -> bool:
    # Of which GPU a slice (MIG) is cannot be told from its name: any may be meant then.
    return any(
        int(token) == gpu.index if token.isdigit() else token.startswith("MIG-") or gpu.uuid.startswith(token)
        for token in tokens
    )
