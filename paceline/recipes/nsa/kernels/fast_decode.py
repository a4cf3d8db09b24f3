"""One new token per row, on a GPU, in four launches: into the stores, compressed blocks and window, choice and selected blocks, join.

    room = build_room(stores, heads, pattern)
    append_token(stores, room, query, states, moment, keys_phi, values_phi, pattern)
    mixed_BHD = attend_token(stores, room, gates, moment, pattern)

Grids are made for the capacity and the length is read on the device, so what was launched once can be recorded and replayed as the text
grows. Everything is written into memory that `room` holds.

Shapes: B rows, G groups, R heads of a group, D width, N compressed blocks, T tokens, W window, P parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from paceline.recipes.nsa.compression import Compression
from paceline.recipes.nsa.kernels.launching import LOG2_E, precision_of
from paceline.recipes.nsa.moment import Moment
from paceline.recipes.nsa.pattern import Pattern
from paceline.recipes.nsa.stages import States

_ROWS = 16
"""of the smallest tile that tensor cores multiply"""
_BUSY = 528
"""programs that keep a GPU busy: four for each of 132 multiprocessors"""
_MOST_SPLITS = 128
"""parts of the compressed branch that one program joins"""
_FEW_BLOCKS = 2048
"""that eight warps have registers for, to choose from"""
_WEIGHTS = 8192
"""of φ that a program reads at once"""


@dataclass(frozen=True)
class Stores:
    """Keys and values that the past left, each group's one after another."""

    compressed_keys: Tensor
    """(B, G, N, D), turned"""
    compressed_values: Tensor
    selected_keys: Tensor
    """(B, G, T, D), turned"""
    selected_values: Tensor
    window_keys: Tensor
    """(B, G, W, D), turned: position t at t mod W"""
    window_values: Tensor
    hidden: Tensor
    """(2, B, G, 2, c, f): of the c blocks that the newest token lies in, φ's first layer so far, for even and odd positions (append_kernels.py)"""
    sums: Tensor
    """(2, B, G, 2, c, D): and the sum of their tokens"""


@dataclass(frozen=True)
class Phi:
    """The compression of keys or of values, as the kernel reads it."""

    expand: Tensor
    shift: Tensor
    """what the places' embeddings add, in fp32"""
    contract: Tensor


@dataclass(frozen=True)
class Room:
    """What one token's kernels write, for one capacity, and how their work is cut."""

    splits: int
    """parts of the compressed branch"""
    per_part: int
    """compressed blocks of each"""
    near: int
    """parts of the window"""
    chosen: int
    """parts of the selected branch"""
    tile: int
    """compressed blocks, or tokens of the window, that are read at once"""
    turned: Tensor
    parts: Tensor
    most: Tensor
    total: Tensor
    scores: Tensor
    blocks: Tensor
    """(B, G, n): those that were chosen, rising"""
    mixed: Tensor


def build_phi(compression: Compression) -> Phi:
    expand = compression.expand
    with torch.no_grad(), torch.autocast(expand.weight.device.type, enabled=False):
        shift = expand.weight.float() @ compression.place_embedding.flatten().float() + expand.bias.float()
    return Phi(expand.weight.detach(), shift, compression.contract.weight.detach())


def build_room(stores: Stores, heads: int, pattern: Pattern) -> Room:
    rows, groups, slots, width = stores.compressed_keys.shape
    dtype, device = stores.compressed_keys.dtype, stores.compressed_keys.device
    count, of_group = rows * groups, heads // groups
    per_selection = pattern.selection_block // pattern.stride
    tile = max(_tile(dtype), per_selection)
    tiles = -(-slots // tile)
    splits = min(tiles, _MOST_SPLITS, max(1, -(-_BUSY // count)))
    per_part = -(-tiles // splits) * tile
    splits, near = -(-slots // per_part), -(-pattern.window // tile)
    chosen = pattern.selected * (pattern.selection_block // _selected_tile(pattern, dtype))
    chosen = min(chosen, max(1, _BUSY // 2 // count))
    num_parts = splits + near + chosen
    num_selection = pattern.num_selection(stores.selected_keys.shape[2])

    def make(*sizes: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(sizes, dtype=kind, device=device)

    return Room(
        splits,
        per_part,
        near,
        chosen,
        tile,
        turned=make(rows, heads, width, kind=dtype),
        parts=make(count, num_parts, of_group, width),
        most=make(count, num_parts, of_group),
        total=make(count, num_parts, of_group),
        scores=make(pattern.reach, count, of_group, num_selection),
        blocks=torch.full((rows, groups, pattern.selected), -1, dtype=torch.int32, device=device),
        mixed=make(rows, heads, width, kind=dtype),
    )


def append_token(
    stores: Stores,
    room: Room,
    query_BHD: Tensor,
    states: States,
    moment: Moment,
    keys_phi: Phi,
    values_phi: Phi,
    pattern: Pattern,
) -> None:
    """The token's keys and values, not turned yet, into the stores; its turned query into the room."""
    from paceline.recipes.nsa.kernels.append_kernels import nsa_decode_append_kernel

    rows, groups, slots, width = stores.compressed_keys.shape
    heads, hidden = query_BHD.shape[1], len(keys_phi.shift)
    new = [each[:, 0] for each in states]
    stride = new[0].stride(0)
    assert all(each.stride() == (stride, width, 1) for each in new), "keys and values come out of one projection"
    assert query_BHD.stride()[1:] == (width, 1)
    chunk = min(1 << (hidden - 1).bit_length(), max(16, _WEIGHTS // width))
    nsa_decode_append_kernel[(rows * groups, 1 + 2 * (pattern.block // pattern.stride))](
        query_BHD, *new,
        moment.rotation.cosine, moment.rotation.sine, moment.begin_rotation.cosine, moment.begin_rotation.sine, moment.position_1,
        keys_phi.expand, keys_phi.shift, keys_phi.contract, values_phi.expand, values_phi.shift, values_phi.contract,
        room.turned, stores.compressed_keys, stores.compressed_values, stores.selected_keys, stores.selected_values,
        stores.window_keys, stores.window_values, stores.hidden, stores.sums,
        query_BHD.stride(0), stride, slots, stores.selected_keys.shape[2],
        G=groups, R=heads // groups, RP=_padded(heads // groups), D=width, L=pattern.block, STRIDE=pattern.stride, W=pattern.window,
        HIDDEN=hidden, CHUNK=chunk, num_warps=8, **_plan_launch(query_BHD.device),
    )  # fmt: skip


def attend_token(stores: Stores, room: Room, gates_BH3: Tensor, moment: Moment, pattern: Pattern) -> Tensor:
    """(B, H, D): what the newest token reads, its branches by their gates; in memory that the next token overwrites.

    The position must have been written before `append_token` of this token was launched, or long ago: it is read while that one may still run.
    """
    from paceline.recipes.nsa.kernels.decode_kernels import (
        nsa_decode_choose_kernel,
        nsa_decode_join_kernel,
        nsa_decode_look_kernel,
    )

    rows, groups, slots, width = stores.compressed_keys.shape
    heads, count = room.turned.shape[1], rows * groups
    capacity = stores.selected_keys.shape[2]
    num_selection, num_parts = room.scores.shape[3], room.parts.shape[1]
    dtype, of_group = room.turned.dtype, heads // groups
    scale, precision = LOG2_E / math.sqrt(width), precision_of(dtype)
    splits_padded, blocks_padded = _padded(room.splits), max(32, _padded(num_selection))
    selected_tile = _selected_tile(pattern, dtype)
    sizes = {"R": of_group, "D": width, "L": pattern.block, "STRIDE": pattern.stride, "BN": room.tile}
    sizes |= _plan_launch(room.turned.device)
    found = room.parts, room.most, room.total
    nsa_decode_look_kernel[(room.splits + room.near, count)](
        room.turned, stores.compressed_keys, stores.compressed_values, stores.window_keys, stores.window_values, moment.position_1,
        *found, room.scores, slots, room.per_part, room.splits, num_parts, num_selection, scale,
        RP=_ROWS, W=pattern.window, PER_SELECTION=pattern.selection_block // pattern.stride, REACH=pattern.reach,
        PRECISION=precision, num_warps=4, num_stages=2, **sizes,
    )  # fmt: skip
    nsa_decode_choose_kernel[(room.chosen, count)](
        room.turned, stores.selected_keys, stores.selected_values, moment.position_1, *found, room.scores, room.blocks,
        capacity, room.per_part, room.splits + room.near, num_parts, num_selection, scale,
        RP=_ROWS, SELECTION=pattern.selection_block, N=pattern.selected, INITIAL=pattern.initial, LOCAL=pattern.local,
        REACH=pattern.reach, HP=_padded(of_group), SP=splits_padded, JP=blocks_padded, TILE=selected_tile, PRECISION=precision,
        num_warps=8 if blocks_padded <= _FEW_BLOCKS else 16, num_stages=2, **sizes,
    )  # fmt: skip
    nsa_decode_join_kernel[(rows * heads,)](
        *found, gates_BH3, moment.position_1, room.mixed, room.per_part, room.splits, room.chosen, num_parts,
        SELECTION=pattern.selection_block, N=pattern.selected, W=pattern.window, TILE=selected_tile,
        SP=splits_padded, WP=_padded(room.near), CP=_padded(room.chosen), num_warps=4, **sizes,
    )  # fmt: skip
    return room.mixed


@cache
def _plan_launch(device: torch.device) -> dict[str, bool]:
    """Whether a kernel may begin while the one before it runs (dependent_kernels.py)."""
    can_depend = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    return {"DEPENDENT": True, "launch_pdl": True} if can_depend else {"DEPENDENT": False}


def _tile(dtype: torch.dtype) -> int:
    return 32 if dtype == torch.float32 else 64


def _selected_tile(pattern: Pattern, dtype: torch.dtype) -> int:
    return min(pattern.selection_block, _tile(dtype))


def _padded(count: int) -> int:
    """To a power of two."""
    return 1 << (count - 1).bit_length()
