# mypy: ignore-errors
"""The GPU kernels that cut the queries of each block into pieces of work, in Triton.

chosen_work.py launches them; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

edges: where the queries of each block begin among all that are sorted by blocks, and where the last ones end; Y = X · (T + 1) blocks, a block
T for what was not chosen;
count_Y: the pieces of each block in the lower half, those of them that are not all of their block in the upper; upto_Y: summed up.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count_pieces(edges_ptr, y, Y, T, PIECE: tl.constexpr):
    """Where the queries of some blocks begin and end, and in how many pieces."""
    is_block = (y < Y) & (y % (T + 1) < T)
    begin = tl.load(edges_ptr + y, mask=is_block, other=0)
    end = tl.load(edges_ptr + y + 1, mask=is_block, other=0)
    return begin, end, (end - begin + PIECE - 1) // PIECE


@triton.jit(do_not_specialize=["Y", "T"])
def nsa_chosen_count_kernel(edges_ptr, count_ptr, Y, T, PIECE: tl.constexpr, SIZE: tl.constexpr):
    y = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    _, _, count = count_pieces(edges_ptr, y, Y, T, PIECE)
    count = count.to(tl.int64)
    tl.store(count_ptr + y, count + (tl.where(count > 1, count, 0) << 32), mask=y < Y)


@triton.jit(do_not_specialize=["Y", "T", "entries", "room"])
def nsa_chosen_cut_kernel(
    edges_ptr, upto_ptr, pieces_ptr, Y, T, entries, room, PIECE: tl.constexpr, SIZE: tl.constexpr
):
    """The pieces of some blocks: (6, room), as Work has them."""
    y = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    begin, end, count = count_pieces(edges_ptr, y, Y, T, PIECE)
    upto = tl.load(upto_ptr + y, mask=y < Y, other=0)
    x = y // (T + 1)
    into = pieces_ptr + (upto & 0xFFFFFFFF).to(tl.int32) - count
    sums = (upto >> 32).to(tl.int32) - count
    # Places count from the beginning of the row and group.
    begin -= x * entries
    end -= x * entries
    for i in range(tl.max(count, 0)):
        mine = i < count
        tl.store(into + i, x, mask=mine)
        tl.store(into + i + room, y % (T + 1), mask=mine)
        tl.store(into + i + 2 * room, begin + i * PIECE, mask=mine)
        tl.store(into + i + 3 * room, tl.minimum(begin + (i + 1) * PIECE, end), mask=mine)
        tl.store(into + i + 4 * room, tl.where(count > 1, sums + i, -1), mask=mine)
        tl.store(into + i + 5 * room, tl.where((i == 0) & (count > 1), count, 0), mask=mine)
