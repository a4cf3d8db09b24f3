"""What mHC's GPU path promises where there is no GPU; tests/gpu/test_hyper_kernels.py has the kernels."""

from __future__ import annotations

import subprocess
import sys

import torch

from paceline.recipes.sasrec.hyper_fused import TILES, fused_available


def test_streams_on_the_cpu_are_left_to_the_tensor_functions():
    assert not fused_available(torch.zeros(3, 4, 8))


def test_triton_is_imported_only_by_who_uses_it():
    code = "import sys; import paceline.recipes.sasrec.hyper_fused; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


def test_tiles_cover_every_width():
    for width in (1, 33, 50, 64, 128, 200, 512):
        for tile in TILES.values():
            assert tile.columns(width) * tile.options(width)["BD"] >= width
            assert tile.options(width)["BD"] in (32, 64, 128), "a power of two"
