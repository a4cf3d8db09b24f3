from __future__ import annotations

import pytest

from paceline.config.sections import Launch
from paceline.errors import ConfigError
from paceline.launch import placement
from paceline.launch.hardware import Gpu
from paceline.launch.placement import Placement, place_ranks, wished_placement


@pytest.fixture(autouse=True)
def _eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Gpu(index, f"GPU-{index}", "NVIDIA H200", 139.8) for index in range(8)]
    monkeypatch.setattr(placement, "list_gpus", lambda: gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        (Launch(), Placement(2, ["4", "5"])),
        (Launch(gpus=[1]), Placement(1, ["5"])),
        (Launch(gpus=[1], nproc=3), Placement(3, ["5"])),
        (Launch(gpus=[]), Placement(1, [])),
    ],
)
def test_one_rank_per_visible_gpu_unless_told_otherwise(launch: Launch, expected: Placement) -> None:
    assert place_ranks(launch) == expected


def test_a_gpu_that_is_not_there_is_refused_and_can_be_wished_for() -> None:
    launch = Launch(gpus=[6, 7])
    with pytest.raises(ConfigError, match="asks for GPU 6, 7"):
        place_ranks(launch, "flag --gpus")
    assert wished_placement(launch).world_size == 2
