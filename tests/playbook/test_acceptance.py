from __future__ import annotations

import pytest

from paceline.playbook.acceptance import choose_speed_up, lowest_capability


@pytest.mark.parametrize(
    ("capability", "share", "says"),
    [
        ((7.0, "GPU 0"), 0.20, "default below compute capability 8: GPU 0 has 7"),
        ((8.0, "GPU 1"), 0.08, "default from compute capability 8 on: GPU 1 has 8"),
        ((9.0, "GPU 0"), 0.08, "GPU 0 has 9"),
    ],
)
def test_by_capability(capability: tuple[float, str], share: float, says: str) -> None:
    assert choose_speed_up("auto", capability)[0] == share
    assert says in choose_speed_up("auto", capability)[1]


def test_a_number_counts_whatever_the_machine() -> None:
    assert choose_speed_up(0.03) == (0.03, "as asked for: min_speed_up")


class Driver:
    """Two GPUs of different ages, or none."""

    class NVMLError(Exception):
        pass

    def __init__(self, *capabilities: tuple[int, int]) -> None:
        self._capabilities = capabilities

    def nvmlInit(self) -> None:
        if not self._capabilities:
            raise self.NVMLError

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self._capabilities)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}aaa"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self._capabilities[handle]


def test_the_least_capable_gpu_decides() -> None:
    assert lowest_capability(Driver((9, 0), (7, 5)), {}) == (7.5, "GPU 1")
    assert lowest_capability(Driver(), {}) is None


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("0", (9.0, "GPU 0")),
        ("GPU-0a", (9.0, "GPU 0")),
        ("0,1", (7.5, "GPU 1")),
        ("MIG-1234", (7.5, "GPU 1")),
        ("", None),
    ],
)
def test_only_a_gpu_that_may_be_seen_decides(visible: str, found: tuple[float, str] | None) -> None:
    assert lowest_capability(Driver((9, 0), (7, 5)), {"CUDA_VISIBLE_DEVICES": visible}) == found


def test_where_there_is_no_gpu_it_is_said_which_default_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.playbook.acceptance.load_nvml", Driver)
    share, why = choose_speed_up("auto")
    assert share == 0.20
    assert "where there is no GPU" in why
