from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.launch.hardware import Gpu, select_gpus, visible_tokens

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
