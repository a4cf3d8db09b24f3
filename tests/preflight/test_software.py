"""Versions as they are installed here, and pairs that do not fit."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from paceline.launch.installed import find_torch
from paceline.preflight import software
from paceline.preflight.fake_nvml import FakeNvml
from paceline.preflight.software import check_software
from tests.preflight.conftest import Build, by_name

BUILT = {"version": "2.11.0+cu130", "cuda": "13.0"}


def test_the_installed_torch_is_read_without_an_import() -> None:
    found = find_torch()
    assert found is not None
    assert found["version"].partition("+")[0] == importlib.metadata.version("torch").partition("+")[0]
    assert ("cuda" in found) == ("+cu" in found["version"])


def test_what_is_here_fits(build: Build) -> None:
    assert {check.status for check in check_software(build())} == {"ok"}


@pytest.mark.parametrize(
    ("torch", "cuda", "overrides", "status", "says"),
    [
        (BUILT, 12080, (), "fail", "built for CUDA 13.0"),
        (BUILT, 13000, (), "ok", "runs CUDA up to 13.0"),
        (BUILT | {"cuda": "13.2"}, 13000, (), "ok", "13.2"),
        (BUILT | {"cuda": "12.6"}, 13010, (), "ok", "up to 13.1"),
        ({"version": "2.13.0+cpu"}, 13000, (), "warn", "the GPUs stay idle"),
        ({"version": "2.13.0+cpu"}, 13000, ("parallel.backend=nccl",), "fail", "nccl cannot start"),
    ],
)
def test_driver_and_torch(
    build: Build,
    monkeypatch: pytest.MonkeyPatch,
    torch: dict[str, str],
    cuda: int,
    overrides: tuple[str, ...],
    status: str,
    says: str,
) -> None:
    monkeypatch.setattr(software, "find_torch", lambda: torch)
    subject = build(*overrides, gpus=("0",))
    found = by_name(check_software(subject, FakeNvml(cuda=cuda)))["CUDA"]
    assert found.status == status
    assert says in found.found
    assert found.values["torch_cuda"] == torch.get("cuda")


def test_an_old_driver_matters_only_where_gpus_train(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "find_torch", lambda: BUILT)
    assert by_name(check_software(build(), FakeNvml(cuda=11080)))["CUDA"].status == "ok"


def test_no_torch_and_an_old_one(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "find_torch", lambda: {"version": "2.9.1"})
    assert by_name(check_software(build()))["torch"].status == "warn"
    monkeypatch.setattr(software, "find_torch", lambda: None)
    found = by_name(check_software(build()))
    assert set(found) == {"Python", "torch"}
    assert (found["torch"].status, found["torch"].remedy) == ("fail", "pip install torch")


def test_nccl_is_the_one_that_torch_was_built_with(
    build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Distributions that are really found, in a folder of their own on the path."""
    for name, version, more in (
        ("torch", "2.11.0", "Requires-Dist: nvidia-nccl-cu13==2.28.9; platform_system == 'Linux'\n"),
        ("nvidia_nccl_cu13", "2.28.9", ""),
    ):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(software, "find_torch", lambda: BUILT)

    def nccl(**environment: str) -> tuple[str, str]:
        subject = build(gpus=("0",), environment=environment)
        found = by_name(check_software(subject, FakeNvml()))["NCCL"]
        return found.status, found.found

    assert nccl() == ("ok", "2.28.9, as torch was built with")
    (tmp_path / "libnccl.so.2").touch()
    assert nccl(LD_LIBRARY_PATH=f"/nowhere:{tmp_path}") == (
        "warn",
        f"2.28.9, but {tmp_path}/libnccl.so.2 comes before it",
    )
    (tmp_path / "nvidia_nccl_cu13-2.28.9.dist-info").rename(tmp_path / "nvidia_nccl_cu13-2.27.1.dist-info")
    metadata = tmp_path / "nvidia_nccl_cu13-2.27.1.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("2.28.9", "2.27.1"))
    assert nccl() == ("warn", "2.27.1, and torch was built with 2.28.9")
    metadata.unlink()
    metadata.parent.rmdir()
    assert nccl()[0] == "warn"
