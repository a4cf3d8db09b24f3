"""A snapshot is of one moment: what changes afterwards does not reach it, and its memory is used again."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.checkpoint import snapshot
from paceline.engine.checkpoint.snapshot import Snapshot


def content(copy: Snapshot) -> bytes:
    return b"".join(bytes(piece) for piece in copy.read())


def expected(tensors: list[torch.Tensor]) -> bytes:
    return b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)


@pytest.mark.parametrize("slab", [64, 1 << 26])
def test_later_changes_do_not_reach_it(monkeypatch: pytest.MonkeyPatch, slab: int) -> None:
    monkeypatch.setattr(snapshot, "_SLAB", slab)
    tensors = [torch.randn(13, 7), torch.tensor(3), torch.empty(0), torch.randn(4, 6).T, torch.ones(3) > 0]
    copy = Snapshot(torch.device("cpu"))
    copy.take(tensors, [False] * len(tensors))
    before = expected(tensors)
    for tensor in tensors:
        tensor.zero_()
    copy.hold_update()
    assert content(copy) == before
    assert copy.num_bytes == len(before)


def test_its_memory_is_used_again_for_more_and_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_SLAB", 64)
    copy = Snapshot(torch.device("cpu"))
    copy.reserve(500)
    for size in (10, 125, 3, 300, 16, 0, 17):
        tensors = [torch.randn(size)]
        copy.take(tensors, [False])
        assert content(copy) == expected(tensors), size


def test_what_is_there_for_a_moment_only_is_copied_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_SLAB", 64)
    tensors = [torch.randn(13, 7), torch.tensor(3), torch.empty(0), torch.randn(4, 6).T]
    before = expected(tensors)

    def one_after_another():
        room = torch.empty(100)
        for tensor in tensors:
            passing = room[: tensor.numel()].to(tensor.dtype, copy=False).view(tensor.shape)
            passing.copy_(tensor)
            yield passing
            passing.zero_()

    copy = Snapshot(torch.device("cpu"))
    copy.take([torch.ones(500)], [False])
    copy.take_assembled(one_after_another(), len(before))
    copy.hold_update()
    assert content(copy) == before


def test_packed_tensors_are_the_same_bytes() -> None:
    """Of every size of element, in any shape; as weights are, too."""
    kinds = [torch.int64, torch.float32, torch.int32, torch.bfloat16, torch.float8_e4m3fn, torch.bool]
    tensors = [torch.randn(4, 6).mul(9).to(kind) for kind in kinds for _ in range(2)]
    tensors[2:2] = [torch.tensor(3), torch.nn.Parameter(torch.randn(5, 3).T), torch.empty(0, 5)]
    tensors.sort(key=lambda tensor: -tensor.element_size())
    packed = snapshot._pack(tensors)
    assert len(packed) == 4
    assert not any(each.requires_grad for each in packed)
    found = b"".join(each.numpy().tobytes() for each in packed)
    assert found == b"".join(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors)


def test_a_tensor_that_is_packed_alone_is_a_copy() -> None:
    """The next update comes while it is written."""
    tensor = torch.ones(3)
    (packed,) = snapshot._pack([tensor])
    tensor.zero_()
    assert packed.any()
