"""What launching kernels of our own needs, whichever they are: is Triton here, and how is the work cut into programs."""

from __future__ import annotations

import importlib.util
from functools import cache


@cache
def triton_is_here() -> bool:
    """It comes with torch for CUDA alone. Kernels import it, so they are imported when they are first launched."""
    return importlib.util.find_spec("triton") is not None


def count_programs(size: int, block: int) -> int:
    return -(-size // block)


def pad_block(size: int) -> int:
    """The block that holds it: a power of two, and 32 at least."""
    return max(32, 1 << (size - 1).bit_length())


def plan_parts(tiles: int, most: int) -> int:
    """Programs that share the tiles, `most` at most; each has as many to go through as the others, or one less.

    By the shape alone, never by the GPU: so is the order in which their parts are summed.
    """
    return count_programs(tiles, count_programs(tiles, most))
