"""env.json: the machine and the software a run started on; secrets are left out. Reads files and the driver, never imports torch.

{"v": 1, "host": "a", "cpu": {"model": "…", "cores": 2}, "memory_gib": 23.4, "gpus": [], "driver": null,
 "versions": {"python": "3.12.4", "torch": "2.13.0", …}, "environment": {"OMP_NUM_THREADS": "1"}, "git": {"sha": "…", "dirty": false}}
"""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import paceline
from paceline.cores import cpu_count
from paceline.launch.hardware import driver_version, list_gpus
from paceline.telemetry.layout import SCHEMA

_PREFIXES = (
    "NCCL_",
    "TORCH_",
    "TORCHELASTIC_",
    "GLOO_",
    "CUDA_",
    "CUBLAS_",
    "NVIDIA_",
    "OMP_",
    "MKL_",
    "KMP_",
    "PYTORCH_",
    "PYTHONHASHSEED",
    "SLURM_",
)
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|JWT", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/\s]*@")  # an address with a user and password in it
_PACKAGES = (
    "torch",
    "numpy",
    "pydantic",
    "tensorboard",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-cudnn-cu12",
    "triton",
)


def describe_environment(environment: Mapping[str, str], directory: Path | None = None) -> dict[str, Any]:
    """The content of env.json for workers that get this environment, started from `directory` (the current one)."""
    return {
        "v": SCHEMA,
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": {"model": _cpu_model(), "cores": cpu_count(), "machine_cores": os.cpu_count()},
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [asdict(gpu) for gpu in list_gpus()],
        "driver": driver_version(),
        "versions": {"python": platform.python_version(), "paceline": paceline.__version__} | _versions(),
        "environment": select_environment(environment),
        "git": _git(directory or Path.cwd()),
    }


def select_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change how training runs, without anything that smells like a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_PREFIXES) and not _SECRET.search(name) and not _SECRET_VALUE.search(value)
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def _git(directory: Path) -> dict[str, Any] | None:
    """Commit and dirtiness of the repository around `directory`; None if there is none, or no git."""
    sha = _run_git(directory, "rev-parse", "HEAD")
    if sha is None:
        return None
    status = _run_git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"sha": sha, "dirty": None if status is None else bool(status)}


def _run_git(directory: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
