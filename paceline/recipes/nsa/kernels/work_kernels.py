# mypy: ignore-errors
"""The GPU kernels that turn round who chose which block, and cut the queries of each block into pieces of work, in Triton.

chosen_work.py launches them; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

A bin is L keys of a row, side by side. Of one document at most one block begins in it, so that a query and a bin name a block: that of the
query's document. Where blocks of several documents begin in one bin, their queries come one document after another, because documents do.

chosen_XQn (first keys; -1 for none), owner_BT, J bins of a row, C words of 32 queries each;
bits_XJC: which queries of a word chose a block in the bin; before_XJC: how many of earlier words did;
size_XJ: how many did; from_XJ: how many chose a block in an earlier bin;
cuts_XJ: the pieces of a bin in the lower half, those of them that are not all of their block in the upper; upto_XJ: of the bins before it.

Bits are set by an atomic or: whoever comes first, the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count_bits(words):
    """Of each word."""
    words = words.to(tl.uint32, bitcast=True)
    words -= (words >> 1) & 0x55555555
    words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F
    return ((words * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def open_entries(chosen_ptr, Q, N: tl.constexpr, NP: tl.constexpr, L: tl.constexpr, ROWS: tl.constexpr):
    """Of ROWS queries: places q · n + i, their bins, words and bits, and which there are."""
    q = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    i = tl.arange(0, NP)[None, :]
    place = q * N + i
    first = tl.load(chosen_ptr + tl.program_id(1).to(tl.int64) * Q * N + place, mask=(q < Q) & (i < N), other=-1)
    return place, first // L, q // 32, q % 32, first >= 0


@triton.jit(do_not_specialize=["Q", "J", "C"])
def nsa_chosen_mark_kernel(
    chosen_ptr, bits_ptr, Q, J, C, N: tl.constexpr, NP: tl.constexpr, L: tl.constexpr, ROWS: tl.constexpr
):
    _, bin, word, bit, is_chosen = open_entries(chosen_ptr, Q, N, NP, L, ROWS)
    at = (tl.program_id(1).to(tl.int64) * J + bin) * C + word
    tl.atomic_or(bits_ptr + at, tl.full([ROWS, NP], 1, tl.int32) << bit, mask=is_chosen, sem="relaxed")


@triton.jit
def open_bin(bits_ptr, before_ptr, owner_ptr, bin, size, t0, Q, T, PIECE: tl.constexpr, L: tl.constexpr):
    """Of each key of a bin, if a block begins there: the keys; from where to where its queries lie among the bin's; and in how many pieces.

    Queries of a block come with its first key or after it, those of earlier documents before.
    """
    s = bin * L + tl.arange(0, L)
    is_block = tl.load(owner_ptr + s, mask=s < T, other=-1) == s
    q = tl.minimum(tl.maximum(s - t0, 0), Q)
    is_inside = is_block & (q < Q)
    words = tl.load(bits_ptr + q // 32, mask=is_inside, other=0)
    begin = tl.load(before_ptr + q // 32, mask=is_inside, other=0)
    begin += count_bits(words & ((tl.full([L], 1, tl.int32) << (q % 32)) - 1))
    begin = tl.where(is_inside, begin, size)
    is_later = (s[None, :] > s[:, None]) & is_block[None, :]
    end = tl.min(tl.where(is_later, begin[None, :], size), 1)
    return s, begin, end, tl.where(is_block, (end - begin + PIECE - 1) // PIECE, 0)


@triton.jit(do_not_specialize=["t0", "Q", "T", "J", "C"])
def nsa_chosen_count_kernel(
    bits_ptr, owner_ptr, before_ptr, size_ptr, cuts_ptr, t0, Q, T, J, C,
    G: tl.constexpr, PIECE: tl.constexpr, L: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """One bin of one row and group."""
    bin, x = tl.program_id(0), tl.program_id(1).to(tl.int64)
    bits_ptr += (x * J + bin) * C
    before_ptr += (x * J + bin) * C
    size = 0
    for start in range(0, C, WORDS):
        c = start + tl.arange(0, WORDS)
        count = count_bits(tl.load(bits_ptr + c, mask=c < C, other=0))
        tl.store(before_ptr + c, size + tl.cumsum(count, 0) - count, mask=c < C)
        size += tl.sum(count, 0)
    # What other threads of this program wrote is read next.
    tl.debug_barrier()
    _, _, _, pieces = open_bin(bits_ptr, before_ptr, owner_ptr + x // G * T, bin, size, t0, Q, T, PIECE, L)
    pieces = pieces.to(tl.int64)
    tl.store(size_ptr + x * J + bin, size)
    tl.store(cuts_ptr + x * J + bin, tl.sum(pieces + (tl.where(pieces > 1, pieces, 0) << 32), 0))


@triton.jit(do_not_specialize=["J"])
def nsa_chosen_sum_up_kernel(size_ptr, cuts_ptr, from_ptr, upto_ptr, total_ptr, J, BINS: tl.constexpr):
    """All bins of one row and group; `total` is what the last ones come to."""
    x = tl.program_id(0)
    i = tl.arange(0, BINS)
    upto = tl.zeros([], tl.int64)
    for start in range(0, x * J, BINS):
        upto += tl.sum(tl.load(cuts_ptr + start + i, mask=start + i < x * J, other=0), 0)
    begin = tl.zeros([], tl.int32)
    for start in range(0, J, BINS):
        is_bin, at = start + i < J, x * J + start + i
        size = tl.load(size_ptr + at, mask=is_bin, other=0)
        cuts = tl.load(cuts_ptr + at, mask=is_bin, other=0)
        tl.store(from_ptr + at, begin + tl.cumsum(size, 0) - size, mask=is_bin)
        tl.store(upto_ptr + at, upto + tl.cumsum(cuts, 0) - cuts, mask=is_bin)
        begin += tl.sum(size, 0)
        upto += tl.sum(cuts, 0)
    if x == tl.num_programs(0) - 1:
        tl.store(total_ptr, upto)


@triton.jit(do_not_specialize=["Q", "J", "C"])
def nsa_chosen_place_kernel(
    chosen_ptr, bits_ptr, before_ptr, from_ptr, entry_ptr, Q, J, C,
    N: tl.constexpr, NP: tl.constexpr, L: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Each query to its place among those of its blocks."""
    place, bin, word, bit, is_chosen = open_entries(chosen_ptr, Q, N, NP, L, ROWS)
    x = tl.program_id(1).to(tl.int64)
    at = (x * J + bin) * C + word
    words = tl.load(bits_ptr + at, mask=is_chosen, other=0)
    into = tl.load(from_ptr + x * J + bin, mask=is_chosen, other=0) + tl.load(before_ptr + at, mask=is_chosen, other=0)
    into += count_bits(words & ((tl.full([ROWS, NP], 1, tl.int32) << bit) - 1))
    tl.store(entry_ptr + x * Q * N + into, place, mask=is_chosen)


@triton.jit(do_not_specialize=["t0", "Q", "T", "J", "C", "room"])
def nsa_chosen_cut_kernel(
    bits_ptr, owner_ptr, before_ptr, size_ptr, from_ptr, upto_ptr, pieces_ptr, t0, Q, T, J, C, room,
    G: tl.constexpr, PIECE: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The pieces of one bin: (6, room), as Work has them."""
    bin, x = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = x * J + bin
    size = tl.load(size_ptr + at)
    s, begin, end, count = open_bin(
        bits_ptr + at * C, before_ptr + at * C, owner_ptr + x // G * T, bin, size, t0, Q, T, PIECE, L
    )
    upto = tl.load(upto_ptr + at)
    several = tl.where(count > 1, count, 0)
    into = pieces_ptr + (upto & 0xFFFFFFFF).to(tl.int32) + tl.cumsum(count, 0) - count
    sums = (upto >> 32).to(tl.int32) + tl.cumsum(several, 0) - several
    first = tl.load(from_ptr + at)
    begin += first
    end += first
    for i in range(tl.max(count, 0)):
        mine = i < count
        tl.store(into + i, x.to(tl.int32) + tl.zeros([L], tl.int32), mask=mine)
        tl.store(into + i + room, s, mask=mine)
        tl.store(into + i + 2 * room, begin + i * PIECE, mask=mine)
        tl.store(into + i + 3 * room, tl.minimum(begin + (i + 1) * PIECE, end), mask=mine)
        tl.store(into + i + 4 * room, tl.where(count > 1, sums + i, -1), mask=mine)
        tl.store(into + i + 5 * room, tl.where((i == 0) & (count > 1), count, 0), mask=mine)
