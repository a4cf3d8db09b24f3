"""GPUs in every state, by a driver that is made up; the real one is in tests/gpu."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.preflight.fake_nvml import FakeGpu, FakeNvml
from paceline.preflight.gpus import check_gpus
from tests.preflight.conftest import Build, by_name

NOBODY = Path("/nonexistent")
OTHER = 2**22 + 1
"""a pid that no process has"""


def test_healthy_ones_are_one_line(build: Build) -> None:
    (found,) = check_gpus(build(gpus=("0", "1")), FakeNvml([FakeGpu(), FakeGpu(used_gib=3)]))
    assert found.status == "ok"
    assert found.found == "2: NVIDIA H200 140 GiB, at least 137.0 GiB free"


@pytest.mark.parametrize(
    ("gpu", "name", "status", "says", "remedy"),
    [
        (
            FakeGpu(used_gib=139.8, processes={OTHER: 139}),
            "GPU 1 memory",
            "fail",
            f"pid {OTHER} (?, 139.0 GiB)",
            "--gpus",
        ),
        (FakeGpu(used_gib=100), "GPU 1 memory", "warn", "processes that cannot be seen", "GPU 1 out"),
        (FakeGpu(processes={1: 0.3}), "GPU 1 processes", "warn", "pid 1 (", "--gpus"),
        (FakeGpu(mode=2), "GPU 1 mode", "fail", "lets nobody compute", "nvidia-smi -c DEFAULT -i 1"),
        (FakeGpu(mode=3, used_gib=20, processes={1: 19}), "GPU 1 mode", "fail", "pid 1", "-c DEFAULT"),
        (FakeGpu(mode=3, used_gib=20, processes={OTHER: 19}), "GPU 1 mode", "warn", f"pid {OTHER}", "-c DEFAULT"),
        (FakeGpu(reasons=0x41), "GPU 1 clocks", "warn", "too hot (hardware", "cooling"),
        (FakeGpu(reasons=0x88), "GPU 1 clocks", "warn", "slows it down; the power supply", "power"),
        (FakeGpu(ecc_errors=3), "GPU 1 ECC", "warn", "3 uncorrected", "--gpu-reset -i 1"),
        (FakeGpu(remapped=(0, 1, True, False)), "GPU 1 ECC", "warn", "wait to be replaced", "--gpu-reset -i 1"),
        (FakeGpu(remapped=(0, 9, True, True)), "GPU 1 ECC", "warn", "could not be replaced", "have this GPU replaced"),
        (FakeGpu("Tesla T4", 15, 0.1), "GPUs alike", "warn", "NVIDIA H200 140 GiB, Tesla T4 15 GiB", "--gpus"),
    ],
)
def test_what_is_wrong_is_named(build: Build, gpu: FakeGpu, name: str, status: str, says: str, remedy: str) -> None:
    nvml = FakeNvml([FakeGpu(), gpu])
    found = by_name(check_gpus(build(gpus=("0", "1"), nproc=2), nvml))
    assert found[name].status == status
    assert says in found[name].found
    assert remedy in found[name].remedy
    assert by_name(check_gpus(build(gpus=("0",)), nvml)).keys() == {"GPUs"}, "it is not one of ours"


def test_ordinary_states_are_no_fault(build: Build) -> None:
    """A cap on the power, no ECC, a process of our own, which may have taken nearly all of the memory by now."""
    gpu = FakeGpu(used_gib=139.8, reasons=0x4, ecc_errors=None, processes={os.getpid(): 139.5})
    assert [check.name for check in check_gpus(build(gpus=("0",)), FakeNvml([gpu]))] == ["GPUs"]


def test_an_exclusive_gpu_takes_one_rank(build: Build) -> None:
    nvml = FakeNvml([FakeGpu(mode=3)])
    assert len(check_gpus(build(gpus=("0",), nproc=1), nvml)) == 1
    assert by_name(check_gpus(build(gpus=("0",), nproc=2), nvml))["GPU 0 mode"].status == "fail"


def test_a_gpu_that_fell_off_the_bus(build: Build) -> None:
    """The launcher then sees no GPU at all, and would train on the CPU."""
    nvml = FakeNvml([FakeGpu(), FakeGpu(is_lost=True)])
    (found,) = check_gpus(build(), nvml)
    assert (found.name, found.status) == ("GPU 1", "warn")
    assert "it does not answer (GPU is lost); beside it no GPU is found" in found.found
    assert check_gpus(build("launch.gpus=[]"), nvml)[0].status == "ok"


def test_gpus_by_uuid_and_slices(build: Build) -> None:
    nvml = FakeNvml([FakeGpu(), FakeGpu(ecc_errors=1)])
    assert "GPU 1 ECC" in by_name(check_gpus(build(gpus=("GPU-00000001",)), nvml))
    assert "slices" in check_gpus(build(gpus=("MIG-1",)), nvml)[0].found


def test_why_there_is_none(build: Build, tmp_path: Path) -> None:
    none, two = FakeNvml(driver=None), FakeNvml([FakeGpu(), FakeGpu()])
    assert check_gpus(build(), none, NOBODY)[0].found == "none: the CPU trains"
    assert "launch.gpus=[]" in check_gpus(build("launch.gpus=[]"), two)[0].found
    (hidden,) = check_gpus(build(environment={"CUDA_VISIBLE_DEVICES": "7"}), two)
    assert (hidden.status, "2 in the machine, none visible" in hidden.found) == ("warn", True)
    device = tmp_path / "0000:01:00.0"
    device.mkdir()
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    (silent,) = check_gpus(build(), none, tmp_path)
    assert (silent.status, "driver does not answer" in silent.found) == ("warn", True)
    (device / "class").write_text("0x040300\n")  # its sound card
    assert check_gpus(build(), none, tmp_path)[0].status == "ok"
