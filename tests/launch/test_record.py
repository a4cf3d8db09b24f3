from __future__ import annotations

import json
import subprocess
from pathlib import Path

import paceline
from paceline.launch.record import describe_environment, select_environment


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
    record = describe_environment({"OMP_NUM_THREADS": "2"}, tmp_path)
    assert json.loads(json.dumps(record)) == record
    assert record["versions"]["paceline"] == paceline.__version__
    assert record["versions"]["torch"]
    assert record["cpu"]["cores"] >= 1
    assert record["memory_gib"] > 0
    assert record["git"] is None


def test_commit_and_dirtiness(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "first")
    clean = describe_environment({}, tmp_path)["git"]
    assert len(clean["sha"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "a").write_text("2")
    assert describe_environment({}, tmp_path)["git"] == clean | {"dirty": True}
