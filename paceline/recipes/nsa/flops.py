"""Floating-point operations of the model's products, per token: what MFU divides by.

Forward once and backward twice as much; what is computed again does not count, nor does the second look that selects. Rows of one document
count what their queries look at on average; of packed rows, whose documents may be short, attention itself is left out: MFU is then too
low rather than too high.
"""

from __future__ import annotations

from paceline.recipes.nsa.block import swiglu_width
from paceline.recipes.nsa.config import Model


def count_flops(model: Model, vocabulary: int, length: int, *, sparse: bool, is_packed: bool) -> float:
    """Of forward and backward, per token."""
    hidden = model.feed_forward or swiglu_width(model.width)
    inner, state = model.heads * model.head_width, model.groups * model.head_width
    branches = 3 if sparse else 1
    weights = 2 * model.width * inner + 2 * branches * model.width * state + 3 * model.width * hidden
    looked_at = 0.0
    if sparse:
        weights += 3 * model.width * model.heads
        compression = 2 * model.head_width * (model.block * model.head_width + model.head_width)
        weights += int(2 * model.groups * compression / model.stride)
    if not is_packed:
        looked_at = mean_keys(model, length) if sparse else (length + 1) / 2
    per_layer = 2 * weights + 4 * inner * looked_at
    return 3.0 * (model.layers * per_layer + 2 * model.width * vocabulary)


def mean_keys(model: Model, length: int) -> float:
    """Keys that a query of one long document looks at, over all branches."""
    compressed = sum(max(0, (t + 1 - model.block) // model.stride + 1) for t in range(length))
    # Whole blocks, and of the query's own what is not after it.
    size = model.selection_block
    selected = sum((min(t // size + 1, model.selected) - 1) * size + t % size + 1 for t in range(length))
    window = sum(min(t + 1, model.window) for t in range(length))
    return (compressed + selected + window) / length
