"""Python, torch, CUDA, the driver and NCCL: their versions, and whether they fit together. Read from files, nothing is imported."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.launch.installed import find_nccl, find_torch
from paceline.preflight.check import Check, fail, ok, warn
from paceline.preflight.nvml import load_nvml, read_driver
from paceline.preflight.subject import Subject

_OLDEST_TORCH = (2, 11)
_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 11), (3, 12)


def check_software(subject: Subject, nvml: Any = None) -> list[Check]:
    torch = find_torch()
    checks = [_python(), _torch(torch)]
    if torch is None:
        return checks
    return [*checks, _cuda(subject, torch, nvml or load_nvml()), *_nccl(subject, torch)]


def _python() -> Check:
    version = platform.python_version()
    if not _OLDEST_PYTHON <= sys.version_info[:2] <= _NEWEST_PYTHON:
        return warn("Python", f"{version}, which nobody has tested", "use Python 3.11 or 3.12", version=version)
    return ok("Python", version, version=version)


def _torch(torch: Mapping[str, str] | None) -> Check:
    if torch is None:
        return fail("torch", f"not installed for {sys.executable}", "pip install torch", version=None)
    version = torch["version"]
    if _numbers(version)[:2] < _OLDEST_TORCH:
        return warn("torch", f"{version}, which nobody has tested", "pip install 'torch>=2.11'", version=version)
    return ok("torch", version, version=version)


def _cuda(subject: Subject, torch: Mapping[str, str], nvml: Any) -> Check:
    """A driver runs every CUDA of its own major version, and older ones; a newer major version it does not."""
    driver, built = read_driver(nvml), torch.get("cuda")
    values = {"torch_cuda": built, "driver": driver[0] if driver else None}
    if driver is None:
        return ok("CUDA", f"no driver; torch is built for {f'CUDA {built}' if built else 'the CPU'}", **values)
    newest = ".".join(map(str, driver[1]))
    has = f"driver {driver[0]} runs CUDA up to {newest}"
    if built is None:
        what, do = f"{has}, and this torch is built for the CPU alone", "install a torch with CUDA"
        if subject.num_gpus and subject.config.parallel.backend == "nccl":
            return fail("CUDA", f"{what}: parallel.backend=nccl cannot start", do, **values)
        return warn("CUDA", f"{what}: the GPUs stay idle", do, **values) if subject.num_gpus else ok("CUDA", has)
    if subject.num_gpus and _numbers(built)[0] > driver[1][0]:
        do = f"update the driver, or install a torch that is built for CUDA {driver[1][0]}"
        return fail("CUDA", f"{has}, and this torch is built for CUDA {built}", do, **values)
    return ok("CUDA", f"torch is built for {built}; {has}", **values)


def _nccl(subject: Subject, torch: Mapping[str, str]) -> list[Check]:
    nccl = find_nccl()
    if nccl is None or "cuda" not in torch or not subject.num_gpus:
        return []
    package, version, found = nccl.package, nccl.wanted, nccl.found
    if found is None:
        return [warn("NCCL", f"{package} is not installed, and torch asks for {version}", f"pip install {package}")]
    values = {"version": found}
    if found != version:
        do = f"pip install {package}=={version}"
        return [warn("NCCL", f"{found}, and torch was built with {version}", do, **values)]
    first = _shadowing(subject.environment.get("LD_LIBRARY_PATH", ""))
    if first is not None:
        what = f"{found}, but {first} comes before it"
        return [warn("NCCL", what, "take that folder out of LD_LIBRARY_PATH", **values)]
    return [ok("NCCL", f"{found}, as torch was built with", **values)]


def _shadowing(search_path: str) -> Path | None:
    """A library that the loader takes in place of the one that came with torch."""
    folders = (Path(folder) for folder in search_path.split(":") if folder)
    return next((folder / "libnccl.so.2" for folder in folders if (folder / "libnccl.so.2").exists()), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0]))
