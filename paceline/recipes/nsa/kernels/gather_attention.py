"""Chosen blocks and their queries by Hopper's copy engine and matrix units: what launches their kernels, and where it can.

if has_hopper(device) and can_gather(6, 64, torch.bfloat16, 64):
    read_blocks(q, k, v, work, parts, parts_lse, t0, block)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from paceline.recipes.nsa.kernels.chosen_work import Work
from paceline.recipes.nsa.kernels.hopper import describe_box, describe_columns
from paceline.recipes.nsa.kernels.launching import LOG2_E

_LEAST_HEADS, _MOST_HEADS = 5, 16
"""of a group: a query takes 8 or 16 rows of a tile, and with fewer heads most of them would be empty"""
_BLOCK = 64
"""keys: a tile of the matrix units"""
_ROWS = 64
"""of a tile: as many as four warps multiply at once"""


def can_gather(heads: int, width: int, dtype: torch.dtype, block: int) -> bool:
    """Whether these kernels can have so many heads of a group, so wide, and blocks of so many keys; on a GPU that has them (hopper.py)."""
    return dtype.itemsize == 2 and block == _BLOCK and width in (64, 128) and _LEAST_HEADS <= heads <= _MOST_HEADS


def read_blocks(
    q: Tensor, k: Tensor, v: Tensor, work: Work, parts: Tensor, parts_lse: Tensor, t0: int, block: int
) -> None:
    """What queries find in their blocks, into `parts`."""
    from paceline.recipes.nsa.kernels.gather_kernels import nsa_chosen_gather_forward_kernel

    sizes = _sizes(q, k, parts, block)
    nsa_chosen_gather_forward_kernel[(work.programs,)](
        _by_queries(q, sizes), *describe_columns(_BLOCK, k, v), _by_parts(parts, sizes), work.entry, work.pieces, work.count, parts_lse,
        t0, parts.shape[1], q.shape[1], work.pieces.shape[1], LOG2_E / math.sqrt(q.shape[3]), **choose_options("forward", q.shape[3]), **sizes,
    )  # fmt: skip


def differentiate_blocks(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, owner: Tensor, work: Work, lse: Tensor, delta: Tensor, parts: Tensor, dk: Tensor,
    dv: Tensor, sums: Tensor, t0: int, block: int, adds: bool,
) -> None:  # fmt: skip
    """The gradients of queries into `parts`; those of keys and values into their place, or into `sums`."""
    from paceline.recipes.nsa.kernels.gather_gradient_kernels import nsa_chosen_gather_gradient_kernel

    sizes = _sizes(q, k, parts, block)
    factor = 1 / math.sqrt(q.shape[3])
    nsa_chosen_gather_gradient_kernel[(work.programs,)](
        _by_queries(q, sizes), _by_queries(grad, sizes), *describe_columns(_BLOCK, k, v), _by_parts(parts, sizes), owner, work.entry, work.pieces,
        work.count, lse, delta, dk, dv, sums, t0, parts.shape[1], q.shape[1], work.pieces.shape[1], factor * LOG2_E, factor,
        ADDS=adds, **choose_options("gradient", q.shape[3]), **sizes,
    )  # fmt: skip


def choose_options(kernel: str, width: int) -> dict[str, int]:
    """Tiles that are fetched ahead, and that wait to be written; and registers of a thread, of eight warps, of which those that compute get what
    the copying ones leave. So two programs of an SM fit, three of the forward of narrow heads."""
    if kernel == "forward":
        return {"NBUF": 3, "NOUT": 2, "num_warps": 4, "maxnreg": 80 if width == 64 else 128}
    return {"NBUF": 3 if width == 64 else 2, "num_warps": 4, "maxnreg": 128}


def _sizes(q: Tensor, k: Tensor, parts: Tensor, block: int) -> dict[str, int]:
    heads, groups, width = q.shape[2], k.shape[2], q.shape[3]
    padded = 8 if heads // groups <= 8 else 16
    return {
        "H": heads, "G": groups, "D": width, "N": parts.shape[2], "L": block, "PER": _ROWS // padded, "RP": padded
    }  # fmt: skip


def _by_queries(states: Tensor, sizes: dict[str, int]) -> Any:
    """(B, T, H, D) as queries and groups, of each all heads."""
    return describe_box(states.view(-1, sizes["H"] // sizes["G"], sizes["D"]), [1, sizes["RP"], 64])


def _by_parts(parts: Tensor, sizes: dict[str, int]) -> Any:
    return describe_box(parts.view(-1, *parts.shape[3:]), [1, sizes["RP"], 64])
