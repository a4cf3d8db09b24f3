"""Attention of each query to the blocks of keys chosen for it, on the GPU, with memory linear in length.

out = attend_chosen(q, k, v, chosen, owner, block)    # q (B, T, H, D), k and v (B, T, G, D), chosen (B, T, G, n)
"""

from __future__ import annotations

import math
from typing import Any

import torch

from paceline.recipes.nsa.chosen_work import Work, plan_work
from paceline.recipes.nsa.range_attention import LOG2_E, precision_of, sum_products

_PROGRAMS = 1024
"""that share the pieces of work of a row and group"""
_JOINED = 32
"""heads of queries whose parts one program puts together"""


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
        from paceline.recipes.nsa.chosen_kernels import nsa_chosen_forward_kernel, nsa_chosen_join_kernel

        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        chosen = chosen.int().contiguous()
        B, T, H, D = q.shape
        sizes = {"H": H, "G": k.shape[2], "D": D, "N": chosen.shape[3]}
        work = plan_work(chosen)
        parts, parts_lse = _new_parts(q, chosen), _new_parts(q, chosen, 1)
        nsa_chosen_forward_kernel[_grid(work)](
            q, k, v, work.entry, work.pieces, work.count, parts, parts_lse, T, work.pieces.shape[2], LOG2_E / math.sqrt(D),
            L=block, **_tile(D, q.dtype, _FORWARD), **sizes,
        )  # fmt: skip
        out, lse = torch.empty_like(q), q.new_empty((B, T, H), dtype=torch.float32)
        nsa_chosen_join_kernel[_grid_of_queries(q, k)](
            parts, parts_lse, chosen, out, lse, T, ROWS=_JOINED, num_warps=_JOINED * D // 512, **sizes
        )
        ctx.save_for_backward(q, k, v, chosen, owner, out, lse, work.entry, work.pieces, work.count)
        ctx.block, ctx.sums_room = block, work.sums_room
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        from paceline.recipes.nsa.chosen_kernels import (
            nsa_chosen_gradient_kernel,
            nsa_chosen_join_keys_kernel,
            nsa_chosen_sum_kernel,
        )

        q, k, v, chosen, owner, out, lse, *planned = ctx.saved_tensors
        work = Work(*planned, ctx.sums_room)
        grad = grad.contiguous()
        T, H, D = q.shape[1:]
        G, room = k.shape[2], work.pieces.shape[2]
        sizes = {"H": H, "G": G, "D": D, "N": chosen.shape[3]}
        factor = 1 / math.sqrt(D)
        delta = sum_products(out, grad, by_heads=False)
        parts = _new_parts(q, chosen)
        sums = q.new_empty((len(work.count), work.sums_room, 2, ctx.block, D), dtype=torch.float32)
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        nsa_chosen_gradient_kernel[_grid(work)](
            q, k, v, owner, work.entry, work.pieces, work.count, lse, delta, grad, parts, dk, dv, sums,
            T, room, work.sums_room, factor * LOG2_E, factor, L=ctx.block, **_tile(D, q.dtype, _GRADIENT), **sizes,
        )  # fmt: skip
        nsa_chosen_join_keys_kernel[_grid(work)](
            owner, work.pieces, work.count, sums, dk, dv, T, room, work.sums_room, G=G, D=D, L=ctx.block
        )
        nsa_chosen_sum_kernel[_grid_of_queries(q, k)](
            parts, chosen, dq, T, ROWS=_JOINED, num_warps=_JOINED * D // 512, **sizes
        )
        return dq, dk, dv, None, None, None


def _new_parts(q: torch.Tensor, chosen: torch.Tensor, width: int = 0) -> torch.Tensor:
    """(X, E, R, D): of a query as many as it has blocks, in the type of the queries; or one number each, in fp32."""
    B, T, G, n = chosen.shape
    dtype = torch.float32 if width else q.dtype
    return q.new_empty((B * G, T * n, q.shape[2] // G, width or q.shape[3]), dtype=dtype)


def _grid(work: Work) -> tuple[int, int]:
    return min(_PROGRAMS, work.pieces.shape[2]), len(work.count)


def _grid_of_queries(q: torch.Tensor, k: torch.Tensor) -> tuple[int, int]:
    B, T, H = q.shape[:3]
    return -(-T * H // k.shape[2] // _JOINED), B * k.shape[2]


_FORWARD = {"ROWS": 128, "num_warps": 4, "num_stages": 2}
_GRADIENT = {"ROWS": 64, "num_warps": 4, "num_stages": 2}


def _tile(width: int, dtype: torch.dtype, of_half: dict[str, int]) -> dict[str, Any]:
    if dtype == torch.float32:
        return {"ROWS": 32, "num_warps": 4, "num_stages": 1, "PRECISION": precision_of(dtype)}
    return {**of_half, "PRECISION": precision_of(dtype)}
