# mypy: ignore-errors
"""The GPU kernel that takes one new token per row into the stores of decoding, in Triton: RoPE, keys and values, and its share of φ.

fast_decode.py launches it; it alone imports this file, and only where Triton is. mypy knows nothing of Triton's language.

A compressed block grows as its tokens come: the product of φ's first layer is a sum over the block's places, so each token adds its own,
and the last one ends the block. A token costs the same wherever in a block it lies, and no raw token is kept. What has been summed up
stands twice, for even and for odd positions: a token reads the one and writes the other, so that the same token again changes nothing.

New: q_BHD, and keys and values of three branches, (B, G, D) each. Stores: (B, G, N, D) of compressed blocks, (B, G, T, D) of tokens,
(B, G, W, D) of the window, as a ring. hidden_2BGkcf and sums_2BGkcD: what φ's first layer and the mean have so far, for keys and values
(k) of each block (c) that the newest token lies in.
"""

from __future__ import annotations

import triton
import triton.language as tl

from paceline.recipes.nsa.kernels.dependent_kernels import follow


@triton.jit
def turn(first, second, cosine, sine):
    return first * cosine - second * sine, second * cosine + first * sine


@triton.jit
def copy_row(from_ptr, into_ptr, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(into_ptr + d, tl.load(from_ptr + d))


@triton.jit
def copy_turned(from_ptr, into_ptr, row, is_row, cosine, sine, D: tl.constexpr):
    """Rows one after another, turned."""
    HALF: tl.constexpr = D // 2
    place = row[:, None] * D + tl.arange(0, HALF)[None, :]
    first = tl.load(from_ptr + place, mask=is_row[:, None], other=0.0).to(tl.float32)
    second = tl.load(from_ptr + HALF + place, mask=is_row[:, None], other=0.0).to(tl.float32)
    first, second = turn(first, second, cosine[None, :], sine[None, :])
    kind = into_ptr.dtype.element_ty
    tl.store(into_ptr + place, first.to(kind), mask=is_row[:, None])
    tl.store(into_ptr + HALF + place, second.to(kind), mask=is_row[:, None])


@triton.jit
def add_to_block(
    new_ptr, expand_ptr, shift_ptr, contract_ptr, hidden_ptr, sums_ptr, into_ptr, cosine_ptr, sine_ptr, t, x, back, slots,
    IS_KEYS: tl.constexpr, D: tl.constexpr, L: tl.constexpr, STRIDE: tl.constexpr, HIDDEN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The new token's share of the block that began `back` strides before the newest one; stored where the token is its last."""
    COVERS: tl.constexpr = L // STRIDE
    HALF: tl.constexpr = D // 2
    number = t // STRIDE - back
    if number >= 0:
        place = t - number * STRIDE
        is_first, is_last = place == 0, place == L - 1
        kind: tl.constexpr = 0 if IS_KEYS else 1
        programs = tl.num_programs(0)
        before = (((t + 1) % 2 * programs + x) * 2 + kind) * COVERS + number % COVERS
        after = ((t % 2 * programs + x) * 2 + kind) * COVERS + number % COVERS
        d, half = tl.arange(0, D), tl.arange(0, HALF)
        token = tl.load(new_ptr + d).to(tl.float32)
        first = tl.load(new_ptr + half).to(tl.float32) + tl.load(
            sums_ptr + before * D + half, mask=~is_first, other=0.0
        )
        second = tl.load(new_ptr + HALF + half).to(tl.float32)
        second += tl.load(sums_ptr + before * D + HALF + half, mask=~is_first, other=0.0)
        tl.store(sums_ptr + after * D + half, first)
        tl.store(sums_ptr + after * D + HALF + half, second)
        first, second = first / L, second / L
        for begin in tl.static_range(0, HIDDEN, CHUNK):
            c = begin + tl.arange(0, CHUNK)
            is_unit = c < HIDDEN
            weight = tl.load(
                expand_ptr + c[:, None] * (L * D) + (place * D + d)[None, :], mask=is_unit[:, None], other=0.0
            )
            unit = tl.sum(weight.to(tl.float32) * token[None, :], 1)
            unit += tl.load(shift_ptr + c, mask=is_unit & is_first, other=0.0)
            unit += tl.load(hidden_ptr + before * HIDDEN + c, mask=is_unit & ~is_first, other=0.0)
            tl.store(hidden_ptr + after * HIDDEN + c, unit, mask=is_unit)
            unit = unit * tl.sigmoid(unit)
            of_contract = half[:, None] * HIDDEN + c[None, :]
            wanted = (is_unit & is_last)[None, :]
            weight = tl.load(contract_ptr + of_contract, mask=wanted, other=0.0).to(tl.float32)
            first += tl.sum(weight * unit[None, :], 1)
            weight = tl.load(contract_ptr + HALF * HIDDEN + of_contract, mask=wanted, other=0.0).to(tl.float32)
            second += tl.sum(weight * unit[None, :], 1)
        if is_last:
            if IS_KEYS:
                first, second = turn(first, second, tl.load(cosine_ptr + half), tl.load(sine_ptr + half))
            into_ptr += (x.to(tl.int64) * slots + number) * D
            tl.store(into_ptr + half, first.to(into_ptr.dtype.element_ty))
            tl.store(into_ptr + HALF + half, second.to(into_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["query_stride", "state_stride", "slots", "room"])
def nsa_decode_append_kernel(
    q_ptr, raw_keys_ptr, raw_values_ptr, keys_ptr, values_ptr, near_keys_ptr, near_values_ptr,
    cosine_ptr, sine_ptr, begin_cosine_ptr, begin_sine_ptr, position_ptr,
    expand_keys_ptr, shift_keys_ptr, contract_keys_ptr, expand_values_ptr, shift_values_ptr, contract_values_ptr,
    turned_ptr, into_few_keys_ptr, into_few_values_ptr, into_keys_ptr, into_values_ptr, into_near_keys_ptr, into_near_values_ptr,
    hidden_ptr, sums_ptr, query_stride, state_stride, slots, room,
    G: tl.constexpr, R: tl.constexpr, RP: tl.constexpr, D: tl.constexpr, L: tl.constexpr, STRIDE: tl.constexpr, W: tl.constexpr,
    HIDDEN: tl.constexpr, CHUNK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Of one row and group: program 0 turns and stores, the others add to one block's keys or values each."""
    COVERS: tl.constexpr = L // STRIDE
    x, role = tl.program_id(0), tl.program_id(1)
    b, g = x // G, x % G
    follow(DEPENDENT)
    t = tl.load(position_ptr).to(tl.int32)
    of_state = b.to(tl.int64) * state_stride + g * D
    if role == 0:
        half = tl.arange(0, D // 2)
        cosine, sine = tl.load(cosine_ptr + half), tl.load(sine_ptr + half)
        row, one = tl.arange(0, RP), tl.arange(0, 1)
        of_query = b.to(tl.int64) * query_stride + g * R * D
        copy_turned(q_ptr + of_query, turned_ptr + x * R * D, row, row < R, cosine, sine, D)
        into = (x.to(tl.int64) * room + t) * D
        copy_turned(keys_ptr + of_state, into_keys_ptr + into, one, one < 1, cosine, sine, D)
        copy_row(values_ptr + of_state, into_values_ptr + into, D)
        into = (x.to(tl.int64) * W + t % W) * D
        copy_turned(near_keys_ptr + of_state, into_near_keys_ptr + into, one, one < 1, cosine, sine, D)
        copy_row(near_values_ptr + of_state, into_near_values_ptr + into, D)
    elif role <= COVERS:
        add_to_block(
            raw_keys_ptr + of_state, expand_keys_ptr, shift_keys_ptr, contract_keys_ptr, hidden_ptr, sums_ptr, into_few_keys_ptr,
            begin_cosine_ptr, begin_sine_ptr, t, x, role - 1, slots, True, D, L, STRIDE, HIDDEN, CHUNK,
        )  # fmt: skip
    else:
        add_to_block(
            raw_values_ptr + of_state, expand_values_ptr, shift_values_ptr, contract_values_ptr, hidden_ptr, sums_ptr, into_few_values_ptr,
            begin_cosine_ptr, begin_sine_ptr, t, x, role - 1 - COVERS, slots, False, D, L, STRIDE, HIDDEN, CHUNK,
        )  # fmt: skip
