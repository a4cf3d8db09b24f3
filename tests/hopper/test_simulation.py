"""What a simulated program is told of: each fault, planted into a kernel that is right without it."""

from __future__ import annotations

import pytest
import torch

from tests.hopper.language import (
    TensorDescriptor,
    fence_async_shared,
    gl,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tests.hopper.simulation import Kernel

SEEDS = range(6)


def load(desc, bufs, bars, turns, FAULT):
    ready, empty = bars[0], bars[1]
    for turn in range(turns):
        buf = turn % 2
        if FAULT != "no wait for room":
            mbarrier.wait(empty.index(buf), (turn // 2 & 1) ^ 1)
        mbarrier.expect(ready.index(buf), 64 * 64 * 2 * (2 if FAULT == "more bytes than come" else 1))
        tma.async_copy_global_to_shared(desc, [turn * 64, 0], ready.index(buf), bufs.index(buf))


def square(bufs, out_buf, bars, turns, FAULT):
    ready, empty, out_ready, out_empty = bars
    for turn in range(turns):
        buf = turn % 2
        if FAULT != "no wait for the copy":
            mbarrier.wait(ready.index(buf), turn // 2 & 1)
        x = bufs.index(buf)
        none = gl.zeros([64, 64], gl.float32, None)
        product = warpgroup_mma(x, x.permute((1, 0)), none, use_acc=False, is_async=True)
        if FAULT == "no wait for the product":
            mbarrier.arrive(empty.index(buf), count=1)
        product = warpgroup_mma_wait(1 if FAULT == "too short a wait" else 0, deps=(product,))
        if FAULT == "read by threads, too":
            x.load(None)
        if FAULT not in ("no wait for the product", "no room again"):
            mbarrier.arrive(empty.index(buf), count=1)
        mbarrier.wait(out_empty.index(0), (turn & 1) ^ 1)
        out_buf.store(product.to(out_buf.dtype))
        if FAULT != "no fence":
            fence_async_shared()
        mbarrier.arrive(out_ready.index(0), count=2 if FAULT == "two arrivals" else 1)


def write(desc, out_buf, bars, turns, FAULT):
    ready, empty = bars[2], bars[3]
    for turn in range(turns):
        mbarrier.wait(ready.index(0), turn & 1)
        tma.async_copy_shared_to_global(desc, [turn * 64, 0], out_buf)
        if FAULT != "no wait for the writing":
            tma.store_wait(0)
        mbarrier.arrive(empty.index(0), count=1)


def squares(desc, out_desc, turns, FAULT: gl.constexpr):
    bufs = gl.allocate_shared_memory(torch.float16, [2, 64, 64], None)
    out_buf = gl.allocate_shared_memory(torch.float16, [64, 64], None)
    bars = []
    for count in (2, 2, 1, 1):
        made = gl.allocate_shared_memory(gl.int64, [count, 1], mbarrier.MBarrierLayout())
        for i in range(count):
            mbarrier.init(made.index(i), count=1)
        bars.append(made)
    gl.warp_specialize(
        [
            (square, (bufs, out_buf, bars, turns, FAULT)),
            (load, (desc, bufs, bars, turns, FAULT)),
            (write, (out_desc, out_buf, bars, turns, FAULT)),
        ],
        [1, 1],
        [24, 24],
    )


def run(fault: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(5 * 64 - 7, 64, generator=torch.Generator().manual_seed(0)).half()
    out = torch.zeros_like(x)
    given = [TensorDescriptor.from_tensor(each, [64, 64], None) for each in (x, out)]
    launched: set[str] = set()
    Kernel(squares, seed, launched)[(1,)](*given, 5, FAULT=fault)
    assert launched == {"squares"}
    tiles = torch.nn.functional.pad(x.float(), (0, 0, 0, 7)).view(5, 64, 64)
    return out, (tiles @ tiles.mT).half().view(-1, 64)[: len(x)]


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_fault_it_is_right_whoever_goes_first(seed: int) -> None:
    found, expected = run("", seed)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("no wait for the copy", "read while a copy is on its way"),
        ("no wait for room", ""),
        ("no wait for the product", "written while the matrix units"),
        ("too short a wait", "not waited for long enough"),
        ("read by threads, too", "what square has read, by threads"),
        ("no room again", "load waits for phase"),
        ("no fence", "what square has written, by threads"),
        ("two arrivals", "more arrived than it counts"),
        ("no wait for the writing", ""),
        ("more bytes than come", "square waits for phase 0"),
    ],
)
def test_a_fault_is_told_of(fault: str, told: str) -> None:
    """For some order at least."""
    caught = []
    for seed in SEEDS:
        try:
            run(fault, seed)
        except AssertionError as error:
            caught.append(str(error))
    assert caught
    assert any(told in each for each in caught)
