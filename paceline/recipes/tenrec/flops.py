"""Floating-point operations of one forward, of the products alone: what MFU divides by. Lookups and norms are not counted."""

from __future__ import annotations

from paceline.recipes.tenrec.columns import ACTIONS, HISTORY
from paceline.recipes.tenrec.config import Model


def ranker_flops(model: Model, num_candidates: int) -> float:
    """Per candidate of a list; the context's, once per list, shared among them."""
    context, width = HISTORY + 1, model.width
    entry = 2 * (4 * width**2 + 2 * width * model.hidden_width)
    # Looking at an entry is a product with it, and another to take its share.
    look = 4 * width
    of_context = context * (entry + look * context)
    of_candidate = entry + look * (context + 1)
    layer = of_candidate + of_context / num_candidates
    return float(model.layers * layer + 2 * width * (len(ACTIONS) + 1))


def tower_flops(model: Model) -> float:
    """Of one tower, per user or item."""
    return float(model.layers * 4 * model.width * model.hidden_width + 2 * model.width**2)
