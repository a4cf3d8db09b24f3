"""Time between events as bins, in units of each user's own pace; the one place where training and evaluation get them from.

    elapsed 0, 90, 90, 400 s   scale 60 s   units between the last and each: 6, 5, 5, 0

Units are whole ones, rounded down: events at the same moment, and all that are less than a unit apart, are 0 apart. What is longer than
`span` counts as `span`. `linear` has a bin per unit. `log` has one per unit below 16, then 8 per doubling:

    units  0 1 … 15   16-17  18-19 … 30-31   32-35 … 60-63   64-71 …
    bin    0 1 … 15   16     17    … 23      24    … 31      32    …
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_PER_DOUBLING = 8


def bin_intervals(elapsed_BL: Tensor, scale_B: Tensor, span: int, kind: str) -> Tensor:
    """(B, L, L) int64: the bin of the time between each two events of a row; `elapsed` and `scale` are float64 seconds.

    Only differences of times are looked at: the moment that a row counts from changes nothing, bit for bit.
    """
    apart_BLL = (elapsed_BL[:, :, None] - elapsed_BL[:, None, :]).abs()
    units_BLL = (apart_BLL / scale_B[:, None, None]).floor().clamp(max=span)
    if kind == "log":
        # units = mantissa · 2^exponent with mantissa in [1/2, 1): exact, where a logarithm would round at the edges of bins.
        mantissa_BLL, exponent_BLL = torch.frexp(units_BLL)
        octave_BLL = exponent_BLL - math.frexp(_PER_DOUBLING)[1]
        widening_BLL = _PER_DOUBLING * octave_BLL + (2 * _PER_DOUBLING * mantissa_BLL).floor()
        units_BLL = torch.where(units_BLL < _PER_DOUBLING, units_BLL, widening_BLL)
    return units_BLL.long()


def count_bins(span: int, kind: str) -> int:
    """How many bins there are; the last is that of `span` units."""
    # On the CPU even where a model is built without storage, on the meta device.
    longest_BL = torch.tensor([[0.0, float(span)]], dtype=torch.float64, device="cpu")
    unit_B = torch.ones(1, dtype=torch.float64, device="cpu")
    return 1 + int(bin_intervals(longest_BL, unit_B, span, kind).max())
