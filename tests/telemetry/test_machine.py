from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import paceline
from paceline.telemetry.machine import ask_driver, describe_machine, select_environment


def test_secrets_are_left_out() -> None:
    environment = {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "2",
        "SLURM_JOB_ID": "7",
        "SLURM_JWT": "eyJ",
        "TORCH_HUB_TOKEN": "hf_x",
        "CUDA_API_KEY": "k",
        "NCCL_PROXY": "http://me:secret@host/",
        "AWS_SECRET_ACCESS_KEY": "s",
        "HOME": "/home/me",
    }
    assert select_environment(environment) == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2", "SLURM_JOB_ID": "7"}


def test_the_record_says_what_the_run_started_on(tmp_path: Path) -> None:
    record = describe_machine({"OMP_NUM_THREADS": "2"}, tmp_path, [{"index": 0}], "580.1")
    assert json.loads(json.dumps(record)) == record
    assert record["versions"]["paceline"] == paceline.__version__
    assert record["versions"]["torch"]
    assert record["cpu"]["cores"] >= 1
    assert record["memory_gib"] > 0
    assert record["git"] is None
    assert (record["gpus"], record["driver"]) == ([{"index": 0}], "580.1")


def test_the_driver_is_asked_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho '0, GPU-1a, NVIDIA H200, 143771, 580.95.05'\necho '1, GPU-2b, X, [N/A], 580.95.05'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    first = {"index": 0, "uuid": "GPU-1a", "name": "NVIDIA H200", "memory_gib": 140.4}
    assert ask_driver() == ([first, {"index": 1, "uuid": "GPU-2b", "name": "X", "memory_gib": None}], "580.95.05")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert ask_driver() == ([], None)


def test_commit_and_dirtiness(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "first")
    clean = describe_machine({}, tmp_path, [], None)["git"]
    assert len(clean["sha"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "a").write_text("2")
    assert describe_machine({}, tmp_path, [], None)["git"] == clean | {"dirty": True}
