"""A job's data and batches, looked at before it starts."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from paceline.launch.placement import Placement
from paceline.preflight.subject import build_subject
from paceline.preflight.training import check_training
from paceline.recipes.job import load_job
from tests.preflight.conftest import Build, by_name


def test_generated_data_and_its_batches(build: Build) -> None:
    subject, wrong = build_subject(load_job("sasrec", ["train.global_batch=100"], {"launch.gpus": ([], "")}, {}))
    assert wrong == []
    found = by_name(check_training(subject))
    assert found["data"].found.startswith("generated:")
    assert found["batches"].values["per_rank"] == [100]
    assert subject.root.name.startswith("sasrec-")


def test_a_missing_file_and_one_that_changes_nothing_else(tmp_path: Path) -> None:
    job = load_job("sasrec", [f"data.path={tmp_path}/ratings.dat"], environ={})
    subject, (missing,) = build_subject(job)
    assert (missing.name, missing.status) == ("data", "fail")
    assert "does not exist" in missing.found
    assert f"data.path={tmp_path}/ratings.dat" in missing.found
    assert missing.remedy
    assert set(by_name(check_training(subject))) == {"batches"}
    (tmp_path / "ratings.dat").write_text("1 2 3\n1 3 4\n")
    subject, wrong = build_subject(job)
    assert wrong == []
    assert "ratings.dat (text:" in by_name(check_training(subject))["data"].found


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root reads everything: another account looks."""
    if os.getuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_a_file_that_may_not_be_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "ratings.dat"
        path.write_text("1 2 3\n")
        path.chmod(0)
        job = load_job("sasrec", [f"data.path={path}"], environ={})
        with as_nobody():
            _, (found,) = build_subject(job)
    assert (found.status, "may not be read" in found.found) == ("fail", True)
    assert "chmod u+r" in found.remedy


def test_contradictions_and_empty_ranks(build: Build) -> None:
    found = by_name(check_training(build("train.micro_batch=3", "train.accumulate=2", nproc=2)))
    assert found["configuration"].status == "fail"
    assert "2 ranks × train.micro_batch=3 × train.accumulate=2 = 12" in found["configuration"].found
    assert "train.accumulate=null" in found["configuration"].remedy
    found = by_name(check_training(build("train.global_batch=2", nproc=3)))
    assert (found["batches"].status, found["batches"].values["per_rank"]) == ("warn", [0, 1, 1])
    assert "--nproc 2 at most" in found["batches"].remedy


def test_with_the_size_of_the_data_the_length_is_checked_too(build: Build) -> None:
    sizes = {"num_train": 10, "num_parameters": 1}
    found = by_name(check_training(build("train.schedule.warmup_steps=100", sizes=sizes)))
    assert "the warm-up" in found["configuration"].found


def test_a_gpu_that_is_not_there_is_said_and_the_rest_goes_on() -> None:
    flags = {"launch.gpus": ([97], "flag --gpus")}
    subject, (missing,) = build_subject(None, flags)
    assert (missing.name, missing.status) == ("GPUs asked for", "fail")
    assert "asks for GPU 97" in missing.found
    assert subject.placement == Placement(1, ["97"])
    assert check_training(subject) == []
