"""On an NVIDIA GPU: a snapshot has the bytes of its moment, whichever way they leave the device."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.checkpoint import snapshot as module
from paceline.engine.checkpoint.snapshot import Snapshot

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


def _state() -> list[torch.Tensor]:
    """Widest first, as a shard has them; transposed, empty and single ones, and one that lies in host memory."""
    torch.manual_seed(0)
    gpu = torch.device("cuda")
    return [
        torch.randint(1 << 40, (3,), device=gpu),
        torch.randn(513, 257, device=gpu).t(),
        torch.randn((), device=gpu),
        torch.tensor(3.0),
        torch.empty(0, 5, device=gpu),
        torch.randn(1 << 21, device=gpu),
        torch.randn(77, device=gpu, dtype=torch.bfloat16),
        torch.randn(9, device=gpu).to(torch.float8_e4m3fn),
        torch.tensor([True, False, True], device=gpu),
    ]


def _bytes(tensors: list[torch.Tensor]) -> bytes:
    flat = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    return b"".join(each.numpy().tobytes() for each in flat)


@pytest.mark.parametrize("way", ["packed", "no memory to spare", "large", "large, in part"])
def test_bytes_of_the_moment(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = _state()
    snapshot = Snapshot(torch.device("cuda"))
    if way == "no memory to spare":
        snapshot._spare_bytes = 0
    if way.startswith("large"):
        monkeypatch.setattr(module, "_AT_ONCE", 1000)
        snapshot._spare_bytes = 700_000 if way.endswith("part") else 1 << 30
    for _ in range(3):
        before = _bytes(tensors)
        torch.cuda._sleep(20_000_000)  # what comes before it is still under way
        snapshot.take(tensors, [index < 2 for index in range(len(tensors))])
        for tensor in tensors[:2]:
            tensor.add_(1)  # may change at once
        snapshot.hold_update()
        for tensor in tensors[2:7]:
            tensor.mul_(2)
        assert b"".join(bytes(piece) for piece in snapshot.read()) == before
        assert _bytes(tensors) != before
