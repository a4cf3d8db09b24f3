from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.launch import hardware
from paceline.launch.hardware import Gpu, cpu_count, select_gpus, visible_tokens

GPUS = [Gpu(index, f"GPU-{index}{index}{index}", "NVIDIA H200", 139.8) for index in range(4)]


@pytest.mark.parametrize(
    ("inherited", "expected"),
    [
        (None, ["0", "1", "2", "3"]),
        ("", []),
        ("2,0", ["2", "0"]),
        ("0,7,1", ["0"]),
        ("-1", []),
        ("GPU-222,1", ["GPU-222", "1"]),
        ("GPU-999", []),
        ("MIG-1", ["MIG-1"]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(inherited: str | None, expected: list[str]) -> None:
    environment = {} if inherited is None else {"CUDA_VISIBLE_DEVICES": inherited}
    assert visible_tokens(GPUS, environment) == expected


def test_an_index_counts_the_visible_gpus() -> None:
    assert select_gpus([1], GPUS, {"CUDA_VISIBLE_DEVICES": "3,2"}) == ["2"]
    assert select_gpus([3, 0], GPUS, {}) == ["3", "0"]
    assert select_gpus(None, GPUS, {"CUDA_VISIBLE_DEVICES": "3,2"}) == ["3", "2"]


def test_a_gpu_that_is_not_there_is_named_with_what_there_is() -> None:
    with pytest.raises(ConfigError) as caught:
        select_gpus([0, 9], GPUS, {}, "flag --gpus")
    problem = caught.value.problems[0]
    assert "asks for GPU 9, but there are 4: 0, 1, 2, 3" in problem.what
    assert problem.where == "flag --gpus"
    with pytest.raises(ConfigError, match=r"there is none \(CUDA_VISIBLE_DEVICES=\)"):
        select_gpus([0], GPUS, {"CUDA_VISIBLE_DEVICES": ""})
    with pytest.raises(ConfigError, match="twice"):
        select_gpus([1, 1], GPUS, {})


def test_cpu_count_respects_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_cgroup_quota", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 6})
    assert cpu_count() == 3
    monkeypatch.setattr(hardware, "_cgroup_quota", lambda: 1.5)
    assert cpu_count() == 2
    monkeypatch.setattr(hardware, "_cgroup_quota", lambda: 0.1)
    assert cpu_count() == 1


def test_quotas_of_both_kinds_of_control_groups(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert hardware._quota_v2(tmp_path / "cpu.max") == 2.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert hardware._quota_v2(tmp_path / "cpu.max") is None
    (tmp_path / "cpu.cfs_quota_us").write_text("300000\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    assert hardware._quota_v1(tmp_path) == 3
    assert hardware._quota_v1(tmp_path / "nowhere") is None
