# mypy: ignore-errors
"""The GPU kernels of attention of one new token per row over the stores of decoding, in Triton.

fast_decode.py launches them; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

1. look: compressed blocks and the window, in parts; of compressed blocks also what selection blocks score by them.
2. choose: the selection blocks, and attention over some of them; each program of a row and group chooses anew, which costs less than
   a kernel more.
3. join: what all parts of a branch found, the branches by their gates.

How long the text is stands on the device: programs for what is not there yet end at once. All heads of a group are rows of one tile.
Sums are in a fixed order: the same input gives the same bits. Each begins while the one before it runs, where that can be (dependent_kernels.py).

q_xRD and stores (x, keys, D), where x counts rows and groups: B · G; parts_xPRD, most_xPR and total_xPR (what a part found, its highest
score in base 2, its sum; P: parts of the compressed branch, of the window and of the selected branch); scores_axRJ (of selection blocks, as
logarithms in base 2: what the exponentials of the compressed blocks that begin in the a-th one before add to them).
"""

from __future__ import annotations

import triton
import triton.language as tl

from paceline.recipes.nsa.kernels.dependent_kernels import follow
from paceline.recipes.nsa.kernels.tile_kernels import load_tile, store_tile

_INFINITE = tl.constexpr(0x7F800000)
"""the bits of an infinite score: above all others"""


@triton.jit
def count_slots(length, L: tl.constexpr, STRIDE: tl.constexpr):
    """Compressed blocks that are whole."""
    return tl.maximum(length - L + STRIDE, 0) // STRIDE


@triton.jit
def above(most):
    """What exponents are taken against: 0 where nothing was seen, for -inf less -inf is not a number."""
    return tl.where(most == float("-inf"), 0.0, most)


@triton.jit
def read_keys(
    q, k_ptr, v_ptr, begin, end, most, total, out, scale, D: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr
):
    """The running softmax with the keys from `begin` up to `end`, at most BN; also their own exponentials, and their highest score."""
    row = tl.arange(0, BN)
    is_key = begin + row < end
    offset = tl.cast(begin, tl.int64) * D
    k = load_tile(k_ptr + offset, row, D, is_key, D)
    v = load_tile(v_ptr + offset, row, D, is_key, D)
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    score = tl.where(is_key[None, :], score, float("-inf"))
    highest = tl.max(score, 1)
    p = tl.exp2(score - above(highest)[:, None])
    larger = tl.maximum(most, highest)
    shrink, grow = tl.exp2(most - above(larger)), tl.exp2(highest - above(larger))
    found = tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
    out = out * shrink[:, None] + found * grow[:, None]
    return larger, total * shrink + tl.sum(p, 1) * grow, out, p, highest


@triton.jit
def store_part(
    parts_ptr, most_ptr, total_ptr, of_part, out, most, total, R: tl.constexpr, RP: tl.constexpr, D: tl.constexpr
):
    row = tl.arange(0, RP)
    store_tile(parts_ptr + of_part * R * D, row, D, row < R, out, D)
    tl.store(most_ptr + of_part * R + row, most, mask=row < R)
    tl.store(total_ptr + of_part * R + row, total, mask=row < R)


@triton.jit
def store_scores(
    scores_ptr, p, highest, start, x, J,
    R: tl.constexpr, RP: tl.constexpr, PER_BLOCK: tl.constexpr, PER_SELECTION: tl.constexpr, REACH: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """What a tile of compressed blocks adds to the selection blocks that they begin in, and to those after these."""
    row = tl.arange(0, RP)
    p = tl.reshape(p, [RP, BN // PER_SELECTION, PER_SELECTION])
    share = tl.arange(0, PER_SELECTION)
    for a in tl.static_range(REACH):
        block = start // PER_SELECTION + tl.arange(0, BN // PER_SELECTION) + a
        is_there = (row < R)[:, None] & (block < J)[None, :]
        strides = tl.minimum(share + PER_BLOCK, (a + 1) * PER_SELECTION) - tl.maximum(share, a * PER_SELECTION)
        score = tl.sum(p * tl.maximum(strides, 0).to(tl.float32)[None, None, :], 2)
        into = scores_ptr + (a * tl.num_programs(1) + x) * R * J
        tl.store(into + (row[:, None] * J + block[None, :]), tl.log2(score) + highest[:, None], mask=is_there)


@triton.jit(do_not_specialize=["slots", "per_part", "splits", "parts", "J"])
def nsa_decode_look_kernel(
    q_ptr, few_keys_ptr, few_values_ptr, near_keys_ptr, near_values_ptr, position_ptr, parts_ptr, most_ptr, total_ptr, scores_ptr,
    slots, per_part, splits, parts, J, scale,
    R: tl.constexpr, RP: tl.constexpr, D: tl.constexpr, L: tl.constexpr, STRIDE: tl.constexpr, W: tl.constexpr,
    PER_SELECTION: tl.constexpr, REACH: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One part of one row and group: some tiles of compressed blocks, or, after `splits` of those, a tile of the window."""
    part, x = tl.program_id(0), tl.program_id(1).to(tl.int64)
    length = tl.load(position_ptr).to(tl.int32) + 1
    row = tl.arange(0, RP)
    follow(DEPENDENT)
    most = tl.full([RP], float("-inf"), tl.float32)
    total = tl.zeros([RP], tl.float32)
    out = tl.zeros([RP, D], tl.float32)
    if part < splits:
        begin = part * per_part
        end = tl.minimum(begin + per_part, count_slots(length, L, STRIDE))
        if begin < end:
            q = load_tile(q_ptr + x * R * D, row, D, row < R, D)
            k_ptr, v_ptr = few_keys_ptr + x * slots * D, few_values_ptr + x * slots * D
            for start in range(begin, end, BN):
                most, total, out, p, highest = read_keys(
                    q, k_ptr, v_ptr, start, end, most, total, out, scale, D, BN, PRECISION
                )
                store_scores(
                    scores_ptr, p, highest, start, x, J, R, RP, L // STRIDE, PER_SELECTION, REACH, BN
                )  # fmt: skip
            store_part(parts_ptr, most_ptr, total_ptr, x * parts + part, out, most, total, R, RP, D)
    else:
        begin = (part - splits) * BN
        end = tl.minimum(length, W)
        if begin < end:
            q = load_tile(q_ptr + x * R * D, row, D, row < R, D)
            most, total, out, _, _ = read_keys(
                q, near_keys_ptr + x * W * D, near_values_ptr + x * W * D, begin, end, most, total, out, scale, D, BN, PRECISION
            )  # fmt: skip
            store_part(parts_ptr, most_ptr, total_ptr, x * parts + part, out, most, total, R, RP, D)


@triton.jit
def score_blocks(
    most_ptr, total_ptr, scores_ptr, x, seen, per_part, parts, J,
    R: tl.constexpr, HP: tl.constexpr, SP: tl.constexpr, JP: tl.constexpr, REACH: tl.constexpr, PER_TILE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """(JP): of each selection block, by the probabilities that the heads of the group give to compressed blocks."""
    row, s, j = tl.arange(0, HP), tl.arange(0, SP), tl.arange(0, JP)
    of_part = x * parts * R + (s[None, :] * R + row[:, None])
    is_part = (row < R)[:, None] & (s < (seen + per_part - 1) // per_part)[None, :]
    most = tl.load(most_ptr + of_part, mask=is_part, other=float("-inf"))
    total = tl.load(total_ptr + of_part, mask=is_part, other=0.0)
    highest = tl.max(most, 1)
    total = tl.sum(total * tl.exp2(most - above(highest)[:, None]), 1)
    # Where no block is seen nothing is added.
    logsum = tl.where(total > 0, highest + tl.log2(tl.where(total > 0, total, 1.0)), float("inf"))
    written = (seen + BN - 1) // BN * PER_TILE
    scores_ptr += x * R * J
    reach = tl.num_programs(1).to(tl.int64) * R * J
    score = tl.zeros([JP], tl.float32)
    # One head after another, and not all as rows of a tile: what is summed up is laid out among the threads as it was read.
    for r in tl.static_range(R):
        of_head = tl.sum(tl.where(row == r, logsum, 0.0), 0)
        for a in tl.static_range(REACH):
            is_there = (j >= a) & (j < written + a) & (j < J)
            share = tl.load(scores_ptr + a * reach + r * J + j, mask=is_there, other=float("-inf"))
            score += tl.exp2(share - of_head)
    return score


@triton.jit
def choose_blocks(score, own, N: tl.constexpr, INITIAL: tl.constexpr, LOCAL: tl.constexpr, JP: tl.constexpr):
    """Which blocks are chosen, the place of each among them, and how many: those in force, then the highest; of equal ones the lower number.

    Scores are not negative: their bits, read as whole numbers, have their order. A level that as many lie at or above as are wanted is found
    bit by bit; half of the bits are enough for most.
    """
    j = tl.arange(0, JP)
    # What is not a number must not be negative as a whole one: places would stay empty. Nor does it come before those in force.
    bits = tl.minimum(score.to(tl.int32, bitcast=True) & 0x7FFFFFFF, _INFINITE - 1)
    bits = tl.where((j < INITIAL) | (j > own - LOCAL), _INFINITE, bits)
    bits = tl.where(j <= own, bits, -1)
    wanted = tl.minimum(own + 1, N)
    level, is_found, bit = wanted * 0, wanted < 0, 30
    while (bit >= 0) & ~is_found:
        higher = level | (1 << bit)
        count = tl.sum((bits >= higher).to(tl.int32), 0)
        is_found = count == wanted
        level = tl.where(count >= wanted, higher, level)
        bit -= 1
    is_chosen = bits >= level
    if not is_found:
        # Several are equal at the border.
        is_above, is_equal = bits > level, bits == level
        rest = wanted - tl.sum(is_above.to(tl.int32), 0)
        is_chosen = is_above | (is_equal & (tl.cumsum(is_equal.to(tl.int32), 0) <= rest))
    return is_chosen, tl.cumsum(is_chosen.to(tl.int32), 0) - 1, wanted


# J not among them: where it is a multiple of 16, four scores are read at once. It changes with the capacity only.
@triton.jit(do_not_specialize=["room", "per_part", "before", "parts"])
def nsa_decode_choose_kernel(
    q_ptr, keys_ptr, values_ptr, position_ptr, parts_ptr, most_ptr, total_ptr, scores_ptr, blocks_ptr,
    room, per_part, before, parts, J, scale,
    R: tl.constexpr, RP: tl.constexpr, D: tl.constexpr, L: tl.constexpr, STRIDE: tl.constexpr, SELECTION: tl.constexpr,
    N: tl.constexpr, INITIAL: tl.constexpr, LOCAL: tl.constexpr, REACH: tl.constexpr, BN: tl.constexpr,
    HP: tl.constexpr, SP: tl.constexpr, JP: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Chooses, then every so manyth tile of the chosen blocks; the part stands behind the `before` parts of the other branches."""
    PER_SELECTION: tl.constexpr = SELECTION // STRIDE
    TILES: tl.constexpr = SELECTION // TILE
    part, x = tl.program_id(0), tl.program_id(1).to(tl.int64)
    length = tl.load(position_ptr).to(tl.int32) + 1
    own = (length - 1) // SELECTION
    row = tl.arange(0, RP)
    q = load_tile(q_ptr + x * R * D, row, D, row < R, D)
    follow(DEPENDENT)
    if part < tl.minimum(own + 1, N) * TILES:
        score = score_blocks(
            most_ptr, total_ptr, scores_ptr, x, count_slots(length, L, STRIDE), per_part, parts, J,
            R, HP, SP, JP, REACH, BN // PER_SELECTION, BN,
        )  # fmt: skip
        is_chosen, place, wanted = choose_blocks(score, own, N, INITIAL, LOCAL, JP)
        j = tl.arange(0, JP)
        if part == 0:
            tl.store(blocks_ptr + x * N + place, j, mask=is_chosen)
        k_ptr, v_ptr = keys_ptr + x * room * D, values_ptr + x * room * D
        most = tl.full([RP], float("-inf"), tl.float32)
        total = tl.zeros([RP], tl.float32)
        out = tl.zeros([RP, D], tl.float32)
        for i in range(part, wanted * TILES, tl.num_programs(0)):
            number = tl.sum(tl.where(is_chosen & (place == i // TILES), j, 0), 0)
            begin = number * SELECTION + i % TILES * TILE
            most, total, out, _, _ = read_keys(
                q, k_ptr, v_ptr, begin, length, most, total, out, scale, D, TILE, PRECISION
            )
        store_part(parts_ptr, most_ptr, total_ptr, x * parts + before + part, out, most, total, R, RP, D)


@triton.jit
def join_parts(
    parts_ptr, most_ptr, total_ptr, of_part, count, r, R: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr
):
    """(D): what `count` parts found together; zeros where they are none."""
    part = tl.arange(0, PARTS)
    is_part = part < count
    place = (of_part + part) * R + r
    most = tl.load(most_ptr + place, mask=is_part, other=float("-inf"))
    share = tl.exp2(most - above(tl.max(most, 0)))
    total = tl.sum(share * tl.load(total_ptr + place, mask=is_part, other=0.0), 0)
    found = load_tile(parts_ptr, place, D, is_part, D)
    return tl.sum(found * share[:, None], 0) / tl.where(total > 0, total, 1.0)


@triton.jit(do_not_specialize=["per_part", "splits", "chosen", "parts"])
def nsa_decode_join_kernel(
    parts_ptr, most_ptr, total_ptr, gates_ptr, position_ptr, mixed_ptr, per_part, splits, chosen, parts,
    R: tl.constexpr, D: tl.constexpr, L: tl.constexpr, STRIDE: tl.constexpr, SELECTION: tl.constexpr, N: tl.constexpr, W: tl.constexpr,
    BN: tl.constexpr, TILE: tl.constexpr, SP: tl.constexpr, WP: tl.constexpr, CP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One head of one row. `splits` parts of the compressed branch, one for each BN tokens of the window, `chosen` of the selected branch."""
    head = tl.program_id(0).to(tl.int64)
    x, r = head // R, head % R
    length = tl.load(position_ptr).to(tl.int32) + 1
    gates_ptr += head * 3
    num_parts = (count_slots(length, L, STRIDE) + per_part - 1) // per_part
    # What the kernel before the last one left: it has ended, for the last one has begun.
    mixed = join_parts(parts_ptr, most_ptr, total_ptr, x * parts, num_parts, r, R, D, SP)
    mixed *= tl.load(gates_ptr).to(tl.float32)
    num_parts = (tl.minimum(length, W) + BN - 1) // BN
    found = join_parts(parts_ptr, most_ptr, total_ptr, x * parts + splits, num_parts, r, R, D, WP)
    mixed += found * tl.load(gates_ptr + 2).to(tl.float32)
    of_selected = tl.load(gates_ptr + 1).to(tl.float32)
    follow(DEPENDENT)
    before = splits + (W + BN - 1) // BN
    num_parts = tl.minimum(tl.minimum((length - 1) // SELECTION + 1, N) * (SELECTION // TILE), chosen)
    mixed += join_parts(parts_ptr, most_ptr, total_ptr, x * parts + before, num_parts, r, R, D, CP) * of_selected
    tl.store(mixed_ptr + head * D + tl.arange(0, D), mixed.to(mixed_ptr.dtype.element_ty))
