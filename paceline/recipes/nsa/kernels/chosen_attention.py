"""Attention of each query to the blocks of keys chosen for it, on the GPU, with memory linear in length.

out = attend_chosen(q, k, v, chosen, owner, block)    # q (B, T, H, D), k and v (B, T, G, D), chosen (B, T, G, n)

What a query finds in each of its blocks is kept until all are found, n times as much as the result: so of long rows, or many or wide
heads, some queries at a time are computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from paceline.recipes.nsa.kernels.chosen_work import build_work, count_planned, new_work, plan_work
from paceline.recipes.nsa.kernels.gather_attention import can_gather, differentiate_blocks, read_blocks
from paceline.recipes.nsa.kernels.hopper import has_hopper
from paceline.recipes.nsa.kernels.launching import LOG2_E, precision_of, sum_products
from paceline.recipes.nsa.kernels.tiles import BUILT_IN, Tiles, decode_tiles, find_shared

_MOST_PARTS = 2**33
"""bytes that are kept of what queries found, at the most"""
_SHARE = 16
"""of a GPU's memory they are a part no larger than this"""
_JOINED = 32
"""heads of queries whose parts one program puts together"""
_JOINED_KEYS = 8
"""of a block, whose gradients one program adds up: of the first block of a long row there are many to add"""


def attend_chosen(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, owner: Tensor, block: int, tiles: Tiles = BUILT_IN
) -> Tensor:
    """What each query reads in its blocks, up to itself; `chosen` has their first keys (-1: none), its own block among them.

    `owner` (B, T) is the first key of the block that each key belongs to: at the end of a document blocks are shorter than `block`.
    """
    chosen = chosen.permute(0, 2, 1, 3).int().contiguous().flatten(0, 1)
    out: Tensor = _attend(q.contiguous(), k.contiguous(), v.contiguous(), chosen, owner, block, tiles.code)[0]
    return out


@custom_op("paceline_nsa::chosen", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, owner: Tensor, block: int, tiles: str
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """With what the gradients want: the logarithm of the denominator, and the work of each slice, three tensors."""
    from paceline.recipes.nsa.kernels.chosen_kernels import nsa_chosen_forward_kernel, nsa_chosen_join_kernel

    T, D = q.shape[1], q.shape[3]
    sizes = _sizes(q, k, chosen)
    out, lse = _new_outputs(q)
    planned = []
    for t0, some in _slices(q, k, chosen, block):
        work = plan_work(some, owner, t0, block, _reach(q, k, some))
        parts, parts_lse = _new_parts(q, k, some), _new_parts(q, k, some, of_one=True)
        if _gathers(q, k, block):
            read_blocks(q, k, v, work, parts, parts_lse, t0, block)
        else:
            nsa_chosen_forward_kernel[(work.programs,)](
                q, k, v, work.entry, work.pieces, work.count, parts, parts_lse, t0, some.shape[1], T, work.pieces.shape[1],
                LOG2_E / math.sqrt(D), L=block, **_tile(decode_tiles(tiles), "selected_forward", q, block), **sizes,
            )  # fmt: skip
        nsa_chosen_join_kernel[_grid_of_queries(q, k, some)](
            parts, parts_lse, some, out, lse, t0, some.shape[1], T, ROWS=_JOINED, num_warps=_JOINED * D // 512, **sizes
        )
        planned += [work.entry, work.pieces, work.count]
        # Before the next ones are made: two at once would be twice the memory.
        del parts, parts_lse
    return out, lse, planned


@_attend.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, owner: Tensor, block: int, tiles: str
) -> tuple[Tensor, Tensor, list[Tensor]]:
    planned = [
        each for _, some in _slices(q, k, chosen, block) for each in new_work(some, q.shape[1], _reach(q, k, some))
    ]
    return *_new_outputs(q), planned


def _gathers(q: Tensor, k: Tensor, block: int) -> bool:
    return has_hopper(q.device) and can_gather(q.shape[2] // k.shape[2], q.shape[3], q.dtype, block)


def _new_outputs(q: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@custom_op("paceline_nsa::chosen_gradient", mutates_args=())
def _differentiate(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, owner: Tensor, out: Tensor, lse: Tensor,
    planned: list[Tensor], block: int, tiles: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from paceline.recipes.nsa.kernels.chosen_kernels import (
        nsa_chosen_gradient_kernel,
        nsa_chosen_join_keys_kernel,
        nsa_chosen_sum_kernel,
    )

    T, D = q.shape[1], q.shape[3]
    sizes = _sizes(q, k, chosen)
    factor = 1 / math.sqrt(D)
    delta = sum_products(out, grad)
    # What several slices of the queries add to keys is summed up in fp32, in their order.
    dtype = torch.float32 if len(planned) > 3 else k.dtype
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k, dtype=dtype), torch.zeros_like(v, dtype=dtype)
    for i, (t0, some) in enumerate(_slices(q, k, chosen, block)):
        entry, pieces, count = planned[3 * i : 3 * i + 3]
        work = build_work(entry, pieces, count, T, block)
        room = work.pieces.shape[1]
        parts = _new_parts(q, k, some)
        sums = q.new_empty((work.sums_room, 2, block, D), dtype=torch.float32)
        if _gathers(q, k, block):
            differentiate_blocks(q, k, v, grad, owner, work, lse, delta, parts, dk, dv, sums, t0, block, i > 0)
        else:
            nsa_chosen_gradient_kernel[(work.programs,)](
                q, k, v, owner, work.entry, work.pieces, count, lse, delta, grad, parts, dk, dv, sums, t0, some.shape[1], T, room,
                factor * LOG2_E, factor, L=block, ADDS=i > 0, **_tile(decode_tiles(tiles), "selected_gradient", q, block), **sizes,
            )  # fmt: skip
        nsa_chosen_join_keys_kernel[(work.programs, -(-block // _JOINED_KEYS))](
            owner, work.pieces, count, sums, dk, dv, T, room, G=sizes["G"], D=D, L=block, SIZE=_JOINED_KEYS, ADDS=i > 0
        )
        nsa_chosen_sum_kernel[_grid_of_queries(q, k, some)](
            parts, some, dq, t0, some.shape[1], T, factor, ROWS=_JOINED, num_warps=_JOINED * D // 512, **sizes
        )
        del parts, sums
    return dq, dk.to(k.dtype), dv.to(v.dtype)


@_differentiate.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, list[Tensor]]) -> None:
    *tensors, ctx.block, ctx.tiles = inputs
    out, lse, planned = output
    ctx.save_for_backward(*tensors, out, lse, *planned)
    ctx.mark_non_differentiable(lse, *planned)
    # Or torch would fill zeros to stand for the gradients that they have not.
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
    q, k, v, chosen, owner, out, lse, *planned = ctx.saved_tensors
    grads = _differentiate(grad.contiguous(), q, k, v, chosen, owner, out, lse, planned, ctx.block, ctx.tiles)
    return *grads, None, None, None, None


_attend.register_autograd(_backward, setup_context=_keep)


def _slices(q: Tensor, k: Tensor, chosen: Tensor, block: int) -> Iterator[tuple[int, Tensor]]:
    """As many queries of all rows and groups at a time as memory is given for what they find, or for planning, which comes before that; the
    first one's number comes with them."""
    length = q.shape[1]
    found = chosen[:, 0].numel() * q.shape[2] // k.shape[2] * q.shape[3] * q.element_size()
    of_one = max(found, count_planned(len(chosen), length, block))
    # As long as one another, so that none is left with a few.
    size = -(-length // max(1, -(-length * of_one // most_parts(q.device))))
    for t0 in range(0, length, size):
        yield t0, chosen[:, t0 : t0 + size].contiguous()


def most_parts(device: torch.device) -> int:
    """Bytes, the same whenever this GPU is asked: in how many slices sums are added up follows from it."""
    if device.type != "cuda":
        return _MOST_PARTS
    return min(_MOST_PARTS, torch.cuda.get_device_properties(device).total_memory // _SHARE)


def _reach(q: Tensor, k: Tensor, chosen: Tensor) -> int:
    """Places in the parts of a group, or in the queries of a row."""
    _, T, H, D = q.shape
    return max(chosen[0].numel() * (H // k.shape[2]), T * H) * D


def _new_parts(q: Tensor, k: Tensor, chosen: Tensor, of_one: bool = False) -> Tensor:
    """(X, Q, n, R, D): of a query as many as it has blocks, in the type of the queries; or one number each, in fp32."""
    heads = q.shape[2] // k.shape[2]
    if of_one:
        return q.new_empty((*chosen.shape, heads), dtype=torch.float32)
    return q.new_empty((*chosen.shape, heads, q.shape[3]))


def _grid_of_queries(q: Tensor, k: Tensor, chosen: Tensor) -> tuple[int, int]:
    return -(-chosen.shape[1] * (q.shape[2] // k.shape[2]) // _JOINED), len(chosen)


def _sizes(q: Tensor, k: Tensor, chosen: Tensor) -> dict[str, int]:
    return {"H": q.shape[2], "G": k.shape[2], "D": q.shape[3], "N": chosen.shape[2]}


def _tile(tiles: Tiles, kernel: str, q: Tensor, block: int) -> dict[str, Any]:
    tile = tiles.find(kernel, q.shape[3], q.dtype, block, find_shared(q.device))
    return {**tile, "PRECISION": precision_of(q.dtype)}
