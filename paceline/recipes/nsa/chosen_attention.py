"""Attention of each query to the blocks of keys chosen for it, on the GPU, with memory linear in length.

out = attend_chosen(q, k, v, chosen, owner, block)    # q (B, T, H, D), k and v (B, T, G, D), chosen (B, T, G, n)
"""

from __future__ import annotations

import math
from typing import Any

import torch

from paceline.recipes.nsa.chosen_work import plan_work
from paceline.recipes.nsa.range_attention import LOG2_E, precision_of, sum_products

_PROGRAMS = 1024
"""that share the pieces of work of a row and group"""
_ROWS = 64
"""of a tile: queries × heads of the group"""


def attend_chosen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chosen: torch.Tensor, owner: torch.Tensor, block: int
) -> torch.Tensor:
    """What each query reads in its blocks, up to itself; `chosen` has their first keys (-1: none), its own block among them.

    `owner` (B, T) is the first key of the block that each key belongs to: at the end of a document blocks are shorter than `block`.
    """
    out: torch.Tensor = _Chosen.apply(q, k, v, chosen, owner, block)  # type: ignore[no-untyped-call]
    return out


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, chosen: torch.Tensor, owner: torch.Tensor, block: int) -> Any:
        from paceline.recipes.nsa.chosen_kernels import nsa_chosen_forward_kernel

        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        chosen = chosen.int().contiguous()
        B, T, H, D = q.shape
        out = torch.empty_like(q)
        lse = q.new_empty((B, H, T), dtype=torch.float32)
        options = _options(q, k, chosen, block)
        nsa_chosen_forward_kernel[(T, B * k.shape[2])](
            q, k, v, chosen, out, lse, T, LOG2_E / math.sqrt(D), RP=max(16, _heads(q, k)), **options
        )
        ctx.save_for_backward(q, k, v, chosen, owner, out, lse)
        ctx.block = block
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        from paceline.recipes.nsa.chosen_kernels import (
            nsa_chosen_key_gradient_kernel,
            nsa_chosen_query_gradient_kernel,
            nsa_chosen_sum_parts_kernel,
        )

        q, k, v, chosen, owner, out, lse = ctx.saved_tensors
        grad = grad.contiguous()
        B, T, _, D = q.shape
        G = k.shape[2]
        factor = 1 / math.sqrt(D)
        delta = sum_products(out, grad)
        options = _options(q, k, chosen, ctx.block)
        dq = torch.empty_like(q)
        nsa_chosen_query_gradient_kernel[(T, B * G)](
            q, k, v, chosen, lse, delta, grad, dq, T, factor * LOG2_E, factor, RP=max(16, _heads(q, k)), **options
        )
        work = plan_work(chosen)
        room = work.pieces.shape[2]
        parts = q.new_empty((B * G, work.parts_room, 2, ctx.block, D), dtype=torch.float32)
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        grid = (min(_PROGRAMS, room), B * G)
        nsa_chosen_key_gradient_kernel[grid](
            q, k, v, owner, work.query, work.pieces, work.count, lse, delta, grad, dk, dv, parts,
            T, room, work.parts_room, factor * LOG2_E, factor, RQ=_heads(q, k), QB=max(1, _ROWS // _heads(q, k)), **options,
        )  # fmt: skip
        nsa_chosen_sum_parts_kernel[grid](
            owner, work.pieces, work.count, parts, dk, dv, T, room, work.parts_room, G=G, D=D, L=ctx.block
        )
        return dq, dk, dv, None, None, None


def _heads(q: torch.Tensor, k: torch.Tensor) -> int:
    """Of a group, or the next power of two."""
    return 1 << (q.shape[2] // k.shape[2] - 1).bit_length()


def _options(q: torch.Tensor, k: torch.Tensor, chosen: torch.Tensor, block: int) -> dict[str, Any]:
    H, D = q.shape[2:]
    return {"H": H, "G": k.shape[2], "D": D, "N": chosen.shape[3], "L": block, "PRECISION": precision_of(q.dtype)}
