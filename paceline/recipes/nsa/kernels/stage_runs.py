"""Every stage of sparse attention by itself, on numbers drawn at random: to be timed, or to compile its kernels.

    inputs = draw_inputs(Case(1, 8192, 12, 2, 64, "bfloat16"), stages, device)
    forward, flows_to = build_runs(inputs, stages, inputs.frame)["window"]

One document per row. Draws from a generator of its own: a training that is about to begin draws what it would have drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.recipes.nsa.compression import Compression
from paceline.recipes.nsa.kernels.tile_store import Case
from paceline.recipes.nsa.pattern import Frame, build_frame, one_document
from paceline.recipes.nsa.stages import Stages

Run = tuple[Callable[[], Sequence[Tensor]], Sequence[Tensor]]
"""what computes a stage, and what its gradients flow to"""
Pair = tuple[Tensor, Tensor]
"""keys and values"""


@dataclass(frozen=True)
class Inputs:
    """What the stages are given."""

    case: Case
    frame: Frame
    compression: Compression
    query: Tensor
    raw: Pair
    """to be compressed"""
    compressed: Pair
    selected: Pair
    window: Pair
    gates: Tensor
    branches: tuple[Tensor, Tensor, Tensor]
    """what is mixed by them"""
    logsum: Tensor
    blocks: Tensor


def draw_inputs(case: Case, stages: Stages, device: torch.device) -> Inputs:
    pattern, width, length = case.pattern, case.head_width, case.length
    frame = build_frame(one_document(case.rows, length, device), pattern, width, torch.float32)
    frame = stages.lay_out(frame, pattern)
    generator = torch.Generator(device).manual_seed(0)

    def draw(count: int, size: int = width, tokens: int = length) -> Tensor:
        shape = (case.rows, tokens, count, size)
        drawn = torch.randn(shape, device=device, dtype=case.torch_dtype, generator=generator)
        return drawn.requires_grad_()

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        compression = Compression(pattern.block, width, 2 * width).to(device)
    query = draw(case.heads)
    raw, selected, window = ((draw(case.groups), draw(case.groups)) for _ in range(3))
    slots = pattern.num_slots(length)
    compressed = draw(case.groups, tokens=slots), draw(case.groups, tokens=slots)
    with torch.no_grad():
        logsum = stages.attend_compressed(query, *compressed, frame)[1]
        blocks = stages.select(query, compressed[0], logsum, frame, pattern)
    # As gates.py gives them.
    gates = draw(case.heads, 3).detach().to(torch.promote_types(case.torch_dtype, torch.float32)).requires_grad_()
    branches = draw(case.heads), draw(case.heads), draw(case.heads)
    return Inputs(
        case, frame, compression, query, raw, compressed, selected, window, gates, branches, logsum, blocks
    )  # fmt: skip


def build_runs(inputs: Inputs, stages: Stages, frame: Frame) -> dict[str, Run]:
    """By the names of STAGES; `compress` is that of keys and values together."""
    pattern, query = inputs.case.pattern, inputs.query

    def compress() -> Sequence[Tensor]:
        with torch.autocast(query.device.type, torch.bfloat16, enabled=query.is_cuda):
            return [stages.compress(states, inputs.compression, frame) for states in inputs.raw]

    def select() -> Sequence[Tensor]:
        return [stages.select(query.detach(), inputs.compressed[0].detach(), inputs.logsum, frame, pattern)]

    return {
        "compress": (compress, [*inputs.raw, *inputs.compression.parameters()]),
        "compressed": (
            lambda: [stages.attend_compressed(query, *inputs.compressed, frame)[0]],
            [query, *inputs.compressed],
        ),
        "select": (select, []),
        "selected": (
            lambda: [stages.attend_selected(query, *inputs.selected, inputs.blocks, frame, pattern)],
            [query, *inputs.selected],
        ),
        "window": (
            lambda: [stages.attend_window(query, *inputs.window, frame, pattern)],
            [query, *inputs.window],
        ),
        "mix": (lambda: [stages.mix(inputs.gates, *inputs.branches)], [inputs.gates, *inputs.branches]),
    }
