# mypy: ignore-errors
"""Kernels that are launched while the one before them still runs, on Hopper and later: what stands in their sources, in Triton.

Kernels alone import this file, and only where Triton is. mypy knows nothing of Triton's language.

Such a kernel begins when all programs of the one before it are past `follow`. What it does before its own `follow` may read what was written
before the launch in front of it, and nothing newer; so addresses, lengths and gates are there when the last result comes. Each kernel of
the chain must come by it, or one that is behind it could begin before one that is two in front of it has ended.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def follow(DEPENDENT: tl.constexpr):
    """From here on all that the kernel before this one wrote is there, and the next one may begin. Nothing, where each is launched when the
    one before it has ended."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
