"""Small attentions, packed rows and the error by which paths are compared."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.recipes.nsa.attention import Shape, SparseAttention
from paceline.recipes.nsa.pattern import Frame, Pattern
from paceline.recipes.nsa.stages import Stages
from paceline.recipes.nsa.torch_path import TORCH

SMALL = Pattern(block=8, stride=4, selection_block=16, selected=4, window=24)
"""so small that short rows have blocks to choose from"""


def build(
    heads: int = 4,
    groups: int = 2,
    head_width: int = 16,
    pattern: Pattern = SMALL,
    gate: str = "sigmoid",
    stages: Stages | None = TORCH,
    seed: int = 0,
) -> SparseAttention:
    """In float64, with weights large enough that every part matters in what is compared."""
    torch.manual_seed(seed)
    attention = SparseAttention(Shape(48, heads, groups, head_width, pattern, gate, 24), stages).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            fan_in = parameter.shape[-1]
            parameter.copy_(torch.randn_like(parameter) * (1.0 / fan_in**0.5 if parameter.dim() > 1 else 0.3))
    return attention


def make_positions(*rows: tuple[int, ...]) -> Tensor:
    """(B, T): rows of packed documents, by their lengths."""
    return torch.stack([torch.cat([torch.arange(length) for length in lengths]) for lengths in rows])


def frame_of(positions_BT: Tensor, attention: SparseAttention, dtype: torch.dtype = torch.float64) -> Frame:
    return attention.build_frame(positions_BT, dtype)


def make_hidden(positions_BT: Tensor, width: int = 48, seed: int = 1) -> Tensor:
    return torch.randn(*positions_BT.shape, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Of the whole tensor: the norm of the difference over the norm of what is expected; infinite where something is not a number, which no
    comparison and no maximum would see."""
    difference = (found.double() - expected.double()).norm()
    error = (difference / expected.double().norm().clamp(min=1e-30)).item()
    return math.inf if math.isnan(error) else error
