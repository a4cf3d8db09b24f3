"""Preflight and the collective bench on a machine with GPUs: the real driver, a real product, NCCL and gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.launch.installed import find_torch
from paceline.preflight.nvml import load_nvml, read_driver, read_gpus

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def paceline(cwd: Path, *arguments: str, code: int = 0, **environment: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "paceline", *arguments, "--json"]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    whole = os.environ | {"PYTHONPATH": path} | environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=cwd, env=whole, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def by_name(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in record["checks"]}


def test_the_driver_says_what_torch_says():
    readings = read_gpus(load_nvml())
    first, properties = readings[0], torch.cuda.get_device_properties(0)
    assert first.name == properties.name
    assert first.total_gib == pytest.approx(properties.total_memory / 2**30, rel=0.05)
    assert 0 < first.free_gib <= first.total_gib
    driver = read_driver(load_nvml())
    assert driver is not None
    found = find_torch()
    assert found is not None
    assert found["cuda"] == torch.version.cuda
    assert driver[1][0] >= int(found["cuda"].partition(".")[0])


def test_our_own_process_on_a_gpu_is_seen_by_others():
    held = torch.zeros(1 << 28, device="cuda")  # 1 GiB
    pids = {pid for reading in read_gpus(load_nvml()) for pid, _ in reading.processes}
    # In a container the driver may speak of pids that are not ours to see.
    assert os.getpid() in pids or pids
    assert held.numel()


def test_the_whole_of_it(tmp_path):
    record = paceline(tmp_path, "preflight", "sasrec", "--gpus", "0")
    found = by_name(record)
    assert record["status"] != "fail"
    assert record["seconds"] < 60
    assert found["CUDA"]["status"] == "ok"
    assert found["CUDA"]["values"]["torch_cuda"] == torch.version.cuda
    assert "at least" in found["GPUs"]["found"]
    assert found["matrix product"]["values"]["flops"]["0"] > 1e12
    assert "one rank needs no collectives" in found["collective"]["found"]
    assert not [check for check in record["checks"] if "could not be checked" in check["found"]]
    assert list(tmp_path.iterdir()) == []


def test_two_ranks_share_one_gpu_over_gloo(tmp_path):
    found = by_name(paceline(tmp_path, "preflight", "--gpus", "0", "--nproc", "2"))
    assert found["collective"]["values"]["backend"] == "gloo"
    assert set(found["matrix product"]["values"]["flops"]) == {"0", "1"}


def test_nccl_with_one_rank_and_as_many_as_there_are_gpus(tmp_path):
    record = paceline(tmp_path, "bench", "collective", "--nproc", "1", "--sizes", "4K,16M")
    assert record["backend"] == "nccl"
    assert record["nccl"]
    assert [row["op"] for row in record["rows"]] == ["all_reduce", "all_gather", "reduce_scatter"] * 2
    if torch.cuda.device_count() > 1:
        record = paceline(tmp_path, "bench", "collective", "--sizes", "64M")
        assert (record["backend"], record["world_size"]) == ("nccl", torch.cuda.device_count())


def test_hidden_gpus_and_quick_checks(tmp_path):
    hidden = by_name(paceline(tmp_path, "preflight", "--quick", CUDA_VISIBLE_DEVICES=""))
    assert hidden["GPUs"]["status"] == "warn"
    assert "none visible" in hidden["GPUs"]["found"]
    quick = paceline(tmp_path, "preflight", "--quick")
    assert not {"collective", "matrix product"} & set(by_name(quick))


def test_a_gpu_that_is_full(tmp_path):
    """Really full: what is left is less than a context takes."""
    free, _ = torch.cuda.mem_get_info(0)
    held = torch.empty(free - (384 << 20), dtype=torch.uint8, device="cuda")
    try:
        found = by_name(paceline(tmp_path, "preflight", "--quick", "--gpus", "0", code=3))
        assert found["GPU 0 memory"]["status"] == "fail"
        assert "--gpus" in found["GPU 0 memory"]["remedy"]
    finally:
        del held
        torch.cuda.empty_cache()
