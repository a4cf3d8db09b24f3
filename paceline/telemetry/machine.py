"""env.json: the machine and the software a run started on, as far as the standard library can tell; secrets are left out.

{"v": 1, "host": "a", "cpu": {"model": "…", "cores": 2}, "memory_gib": 23.4, "gpus": [], "driver": null,
 "versions": {"python": "3.12.4", "torch": "2.13.0", …}, "environment": {"OMP_NUM_THREADS": "1"}, "git": {"sha": "…", "dirty": false}}

Who has the driver's own library at hand gives the GPUs; without it the driver's program is asked.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import paceline
from paceline.cores import cpu_count
from paceline.telemetry.layout import SCHEMA
from paceline.telemetry.software import COMPUTING, find_versions

_PREFIXES = (
    "NCCL_",
    "TORCH_",
    "TORCHELASTIC_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TRITON_",
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
_PACKAGES = (*COMPUTING, "pydantic", "tensorboard")
_GPU_FIELDS = "index,uuid,name,memory.total,driver_version"


def describe_machine(
    environment: Mapping[str, str],
    directory: Path,
    gpus: Sequence[Mapping[str, Any]],
    driver: str | None,
) -> dict[str, Any]:
    """The content of env.json for processes with this environment, started from `directory`."""
    return {
        "v": SCHEMA,
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": {"model": _cpu_model(), "cores": cpu_count(), "machine_cores": os.cpu_count()},
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [dict(gpu) for gpu in gpus],
        "driver": driver,
        "versions": {"python": platform.python_version(), "paceline": paceline.__version__} | find_versions(_PACKAGES),
        "environment": select_environment(environment),
        "git": _git(directory),
    }


def ask_driver() -> tuple[list[dict[str, Any]], str | None]:
    """(GPUs, version of the driver) as nvidia-smi tells them; ([], None) where there is none. Takes up to seconds."""
    command = ["nvidia-smi", f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"]
    gpus, driver = [], None
    for line in (_run(command, timeout_s=20) or "").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and cells[0].isdecimal():
            index, uuid, name, memory_mib, driver = cells
            memory_gib = round(int(memory_mib) / 1024, 1) if memory_mib.isdecimal() else None
            gpus.append({"index": int(index), "uuid": uuid, "name": name, "memory_gib": memory_gib})
    return gpus, driver


def select_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change how training runs, without anything that smells like a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_PREFIXES) and not _SECRET.search(name) and not _SECRET_VALUE.search(value)
    }


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
    git = ["git", "--no-optional-locks", "-C", str(directory)]
    sha = _run([*git, "rev-parse", "HEAD"])
    if sha is None:
        return None
    status = _run([*git, "status", "--porcelain", "--untracked-files=no"])
    return {"sha": sha, "dirty": None if status is None else bool(status)}


def _run(command: list[str], timeout_s: float = 5) -> str | None:
    """What a command prints; None if it fails, hangs, or is not there."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
