"""Subjects to check, and shells in which a part of the machine is really broken."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.launch.placement import Placement
from paceline.preflight.check import Check
from paceline.preflight.subject import Subject
from paceline.recipes.job import load_job

ROOT = Path(__file__).parents[2]
Build = Callable[..., Subject]
Inside = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build("data.num_workers=2", nproc=2, gpus=["0"]) -> Subject of the sasrec recipe, on made-up GPUs."""

    def make(*overrides: str, nproc: int = 1, gpus: tuple[str, ...] = (), **more: Any) -> Subject:
        job = load_job("sasrec", overrides, environ={})
        values: dict[str, Any] = {"root": tmp_path / "run", "environment": {}, "origins": job.origins, "job": job}
        return Subject(job.config, Placement(nproc, list(gpus)), **(values | more))

    return make


def by_name(checks: list[Check]) -> dict[str, Check]:
    found = {check.name: check for check in checks}
    assert len(found) == len(checks), "two checks of one name"
    return found


@functools.cache
def _cannot_unshare() -> str:
    """Why this account may not break a machine of its own; empty where it may."""
    if shutil.which("unshare") is None:
        return "there is no unshare here"
    done = subprocess.run(["unshare", "-m", "-n", "-u", "true"], capture_output=True, text=True, check=False)
    return f"mounts and namespaces need root: {done.stderr.strip()}" if done.returncode else ""


@pytest.fixture
def inside(tmp_path: Path) -> Inside:
    """inside("mount …; exec paceline preflight --json", "-m") -> the ended process, in namespaces of its own."""
    if _cannot_unshare():
        pytest.skip(_cannot_unshare())

    def run(script: str, *namespaces: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        command = ["unshare", *namespaces, "sh", "-euc", script.replace("paceline ", f"{sys.executable} -m paceline ")]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=90, cwd=tmp_path, env=environment, check=False
        )

    return run


def statuses(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """The checks of a `paceline preflight --json`, by name."""
    assert done.returncode in (0, 3), done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}
