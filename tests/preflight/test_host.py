"""What the machine around the GPUs has, against what these ranks want; broken ones are in test_broken_machines.py."""

from __future__ import annotations

import os
import resource

import psutil

from paceline.preflight.host import available_bytes, check_host
from tests.preflight.conftest import Build, by_name


def test_a_small_job_fits_here(build: Build) -> None:
    found = by_name(check_host(build()))
    assert set(found) == {"memory", "shared memory", "open files", "cores"}
    assert {name: check.status for name, check in found.items()} == dict.fromkeys(found, "ok")
    assert found["memory"].values["available_gib"] < psutil.virtual_memory().total / 2**30
    assert 0 < available_bytes() <= psutil.virtual_memory().total


def test_more_ranks_than_memory_and_cores(build: Build) -> None:
    found = by_name(check_host(build(nproc=100_000)))
    assert found["memory"].status == found["cores"].status == "warn"
    assert "100000 ranks" in found["memory"].found
    assert f"--nproc {len(os.sched_getaffinity(0))} at most" in found["cores"].remedy


def test_loaders_count(build: Build) -> None:
    cores = len(os.sched_getaffinity(0))
    found = by_name(check_host(build("data.placement=host", f"data.num_workers={cores}")))["cores"]
    assert found.status == "warn"
    assert f"1 rank and {cores} loader process" in found.found
    assert f"data.num_workers={cores - 1}" in found.remedy


def test_a_low_limit_of_open_files(build: Build) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(os.listdir("/proc/self/fd")) + 64  # whoever runs this has files open
    assert limit < 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        found = by_name(check_host(build()))["open files"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.status == "warn"
    assert found.values["limit"] == limit
    assert str(1024 if hard == resource.RLIM_INFINITY else hard) in found.remedy.replace(",", "")
