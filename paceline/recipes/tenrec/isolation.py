"""The arithmetic of isolated candidates: each is mixed with the context and with itself, never with another candidate.

    blend(to_context_BHQS, to_self_BHQ1, context_BHSD, own_BHQD)   ->   (B, H, Q, D)

A row's softmax runs over the S context entries and its own one. The context is computed once for all candidates, who neither see each other
nor are seen by it, and nothing tells them their place: permuting them permutes what comes out, and replacing one leaves the others as they
are, bit for bit: every row goes through the same operations with the same operands. A library for matrix products may still compute the rows
at an edge of its tiles otherwise than those within; `product` leaves it no such edge.

Shapes: B samples, H heads, S entries of the context, Q rows that look at it, D width of a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_TILE = 16
"""Of these many columns, and of products over so many terms, MKL computes all rows alike (measured 2026-11-16: with 11 columns 90 % of all
products had rows that depended on their place, with 16, 32, 48 … none, but for one matrix alone of less than 12 rows on two threads)."""
_FEW = 12


def product(left_BHQK: Tensor, right_BHKN: Tensor) -> Tensor:
    """(B, H, Q, N) whose rows do not depend on their place among the Q: filled up with zeros to whole tiles, which change no sum."""
    rows, terms = left_BHQK.shape[-2:]
    columns = right_BHKN.shape[-1]
    more_terms = -terms % _TILE
    left = _fill(left_BHQK, max(0, _FEW - rows), more_terms)
    right = _fill(right_BHKN, more_terms, -columns % _TILE)
    return (left @ right)[..., :rows, :columns]


def _fill(matrices: Tensor, rows: int, columns: int) -> Tensor:
    """With so many more of zeros; the same, and no copy, where there are none."""
    return F.pad(matrices, (0, columns, 0, rows)) if rows or columns else matrices


def blend(to_context_BHQS: Tensor, to_self_BHQ1: Tensor, context_BHSD: Tensor, own_BHQD: Tensor) -> Tensor:
    """The mean of the context and of each row's own entry, weighted by a softmax over all of them, in fp32."""
    num_context = context_BHSD.shape[-2]
    scores = torch.cat((to_context_BHQS, to_self_BHQ1), -1).float()
    # Whole tiles already here, of entries that nobody sees: torch's softmax on a CPU takes ten times as long over 12 as over 16, and the
    # product needs them anyway. A row's own weight meets a row of zeros there.
    more = -scores.shape[-1] % _TILE
    weights = F.pad(scores, (0, more), value=-math.inf).softmax(-1).to(own_BHQD.dtype)
    context_BHSD = _fill(context_BHSD, 1 + more, 0)
    return product(weights, context_BHSD) + weights[..., num_context : num_context + 1] * own_BHQD


def pool(scores_BHQS: Tensor, context_BHSD: Tensor) -> Tensor:
    """The mean of the context alone, weighted by a softmax in fp32."""
    return product(scores_BHQS.float().softmax(-1).to(context_BHSD.dtype), context_BHSD)


def dot(left_BHQD: Tensor, right_BHQD: Tensor) -> Tensor:
    """(B, H, Q, 1): each row with its own partner, scaled as scores are."""
    return (left_BHQD * right_BHQD).sum(-1, keepdim=True) / math.sqrt(left_BHQD.shape[-1])


def dot_all(rows_BHQD: Tensor, context_BHSD: Tensor, bias_B11S: Tensor) -> Tensor:
    """(B, H, Q, S): each row with every entry of the context; the bias hides entries that are not there."""
    return product(rows_BHQD, context_BHSD.transpose(-2, -1)) / math.sqrt(rows_BHQD.shape[-1]) + bias_B11S
