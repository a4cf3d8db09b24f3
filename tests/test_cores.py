from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline import cores
from paceline.cores import cpu_count


def test_cpu_count_respects_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_cgroup_quota", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 6})
    assert cpu_count() == 3
    monkeypatch.setattr(cores, "_cgroup_quota", lambda: 1.5)
    assert cpu_count() == 2
    monkeypatch.setattr(cores, "_cgroup_quota", lambda: 0.1)
    assert cpu_count() == 1


def test_quotas_of_both_kinds_of_control_groups(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert cores._quota_v2(tmp_path / "cpu.max") == 2.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores._quota_v2(tmp_path / "cpu.max") is None
    (tmp_path / "cpu.cfs_quota_us").write_text("300000\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    assert cores._quota_v1(tmp_path) == 3
    assert cores._quota_v1(tmp_path / "nowhere") is None
