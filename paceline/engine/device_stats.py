"""What a device says about itself: memory, utilisation, clocks, power, and the peak that MFU is measured against."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch

_GIB = 2**30
_PEAK_TFLOPS = {
    # Dense tensor-core peaks by the vendor's data sheets: (bf16 or fp16, tf32). Longest name first.
    "H200": (989, 494),
    "H100 PCIe": (756, 378),
    "H100": (989, 494),
    "A100": (312, 156),
    "L40S": (362, 183),
    "RTX 4090": (165, 83),
    "RTX 3090": (71, 36),
    "A10": (125, 62),
    "V100": (125, None),
    "T4": (65, None),
}


def memory_gib(device: torch.device, graph_bytes: int) -> float:
    """Peak of allocated memory since the last call on CUDA, with what graphs keep besides; on the CPU the resident memory of the process
    without what it has mapped of files, which is the system's to take back."""
    if device.type == "cuda":
        # Not max_memory_allocated: it flattens every figure that the allocator has before it takes one.
        peak: int = torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"]
        torch.cuda.reset_peak_memory_stats(device)
        return (peak + graph_bytes) / _GIB
    _, resident_pages, mapped_pages, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident_pages - mapped_pages) * os.sysconf("SC_PAGE_SIZE") / _GIB


def gpu_reading(device: torch.device) -> dict[str, Any] | None:
    """Utilisation, clock and power of this rank's GPU; None without one, or where NVML does not answer."""
    if device.type != "cuda":
        return None
    with contextlib.suppress(Exception):
        # NVML's errors have no common base with torch's, and a reading is never worth a run.
        return {
            "util": torch.cuda.utilization(device),
            "clock_mhz": torch.cuda.clock_rate(device),
            "power_w": torch.cuda.power_draw(device) / 1000,
        }
    return None


def peak_flops(device: torch.device, precision: str, tf32: bool) -> float | None:
    """The device's peak for this precision; None where it is not known (then there is no MFU)."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    for part, (half, single) in _PEAK_TFLOPS.items():
        if part in name:
            peak = half if precision in ("bf16", "fp16") else (single if tf32 else None)
            return peak * 1e12 if peak is not None else None
    return None
