"""What of it runs without a GPU; tests/gpu has the kernels."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from paceline.recipes.nsa.kernels.launching import describe, precision_of


def test_fp32_is_multiplied_as_it_is() -> None:
    assert precision_of(torch.float32) == "ieee"
    assert {precision_of(dtype) for dtype in (torch.bfloat16, torch.float16)} == {"tf32"}


def test_a_tile_is_some_tokens_of_one_head_in_the_tensor_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    told = ModuleType("triton.tools.tensor_descriptor")
    made = lambda base, block: SimpleNamespace(base=base, block=block)  # noqa: E731
    told.TensorDescriptor = SimpleNamespace(from_tensor=made)  # type: ignore[attr-defined]
    for name in ("triton", "triton.tools"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "triton.tools.tensor_descriptor", told)
    query, keys = torch.randn(2, 5, 3, 8), torch.randn(2, 7, 1, 8)
    ours, theirs = describe((query, 4), (keys, 2))
    assert (ours.block, theirs.block) == ([4, 8], [2, 8])
    assert theirs.base.shape == (14, 8)
    assert torch.equal(ours.base[1 * 5 + 2, 2 * 8 : 3 * 8], query[1, 2, 2])
    assert ours.base.data_ptr() == query.data_ptr(), "no copy"
