"""The NCCL that a torch names, from distributions that are really found; torch itself is in tests/preflight/test_software.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.launch.installed import Nccl, find_nccl


def test_the_nccl_that_torch_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(name: str, version: str, more: str = "") -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}")

    monkeypatch.syspath_prepend(str(tmp_path))
    install("torch", "2.11.0")
    assert find_nccl() is None
    install("torch", "2.11.0", "Requires-Dist: nvidia-nccl-cu13==2.28.9; platform_system == 'Linux'\n")
    assert find_nccl() == Nccl("nvidia-nccl-cu13", "2.28.9", None)
    install("nvidia_nccl_cu13", "2.27.1")
    assert find_nccl() == Nccl("nvidia-nccl-cu13", "2.28.9", "2.27.1")
