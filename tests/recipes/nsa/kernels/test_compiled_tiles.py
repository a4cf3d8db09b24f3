"""Built-in tiles on GPUs that have less shared memory than an H200, none of which is here: the compiler says how much a kernel takes."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from paceline.recipes.nsa.kernels.tiles import KERNELS, LARGE_BLOCKS_SHARED, built_in
from tests.recipes.nsa.kernels.compiled_kernels import compile_kernel

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("triton") is None, reason="the kernels are in Triton, which is not installed"),
]

SHARED = {80: 166_912, 86: 101_376, 89: 101_376, 120: 101_376}
"""bytes that a program may have, by compute capability: an A100; GeForce and workstation cards of three generations"""
HALF, WHOLE = torch.bfloat16, torch.float32


def check_that_it_fits(kernel: str, width: int, dtype: torch.dtype, block: int, capability: int) -> None:
    tile = built_in(kernel, width, dtype, block, SHARED[capability])
    compiled = compile_kernel(kernel, width, dtype, tile, capability, block, is_long=True)
    assert compiled.metadata.shared <= SHARED[capability], (kernel, tile)


@pytest.mark.parametrize(
    ("kernel", "width", "dtype", "block", "capability"),
    [
        ("selected_gradient", 128, WHOLE, 64, 86),
        ("selected_gradient", 128, WHOLE, 64, 120),
        ("selected_gradient", 128, WHOLE, 128, 80),
        ("selected_gradient", 128, HALF, 128, 80),
        ("selected_gradient", 128, HALF, 64, 89),
        ("selected_gradient", 64, WHOLE, 128, 89),
        ("selected_forward", 128, HALF, 64, 89),
        ("selected_past_key_gradient", 128, HALF, 64, 89),
        ("selected_past_forward", 128, HALF, 64, 120),
        ("select", 128, WHOLE, 64, 89),
    ],
)
def test_the_largest_built_in_tiles_fit_into_small_gpus(
    kernel: str, width: int, dtype: torch.dtype, block: int, capability: int
) -> None:
    check_that_it_fits(kernel, width, dtype, block, capability)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 120])
@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if not kernel.startswith("compressed")])
def test_every_built_in_tile_fits_into_small_gpus(kernel: str, capability: int) -> None:
    """The compressed branch launches what the window does."""
    for width in (64, 128):
        for dtype in (HALF, WHOLE):
            for block in (16, 64, 128) if kernel in ("selected_forward", "selected_gradient") else (64,):
                # What is refused there (paths.py).
                if width < 128 or block < 128 or SHARED[capability] >= LARGE_BLOCKS_SHARED:
                    check_that_it_fits(kernel, width, dtype, block, capability)
