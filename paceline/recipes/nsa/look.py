"""Softmax attention of some queries over some keys, in plain torch: scores in fp32 (float64 for float64), whatever the type of the states.

    mixed_BQHD, logsum_BHQ = soft_look(query_BQHD, keys_BSGD, values_BSGD, sees_BGQS)

Shapes: B rows, Q queries, S keys, H heads, G groups, R heads of a group, D width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def grouped_scores(query_BQHD: Tensor, keys_BSGD: Tensor) -> Tensor:
    """(B, G, R, Q, S) in fp32 at least."""
    groups, width = keys_BSGD.shape[2:]
    query_BGRQD = _by_group(query_BQHD, groups)
    keys_BG1DS = _widened(keys_BSGD).permute(0, 2, 3, 1)[:, :, None]
    with torch.autocast(query_BQHD.device.type, enabled=False):
        scores: Tensor = query_BGRQD @ keys_BG1DS / math.sqrt(width)
    return scores


def soft_look(query_BQHD: Tensor, keys_BSGD: Tensor, values_BSGD: Tensor, sees_BGQS: Tensor) -> tuple[Tensor, Tensor]:
    """(B, Q, H, D), and the logarithms of sums of exponentials (B, H, Q); zeros and -inf where a query sees nothing. G of `sees` may be 1."""
    scores_BGRQS = grouped_scores(query_BQHD, keys_BSGD).masked_fill(~sees_BGQS[:, :, None], -math.inf)
    highest = scores_BGRQS.detach().amax(-1, keepdim=True)
    sees_nothing = highest == -math.inf
    parts_BGRQS = (scores_BGRQS - highest.masked_fill(sees_nothing, 0.0)).exp()
    total = parts_BGRQS.sum(-1, keepdim=True)
    weights_BGRQS = parts_BGRQS / total.masked_fill(sees_nothing, 1.0)
    values_BG1SD = _widened(values_BSGD).transpose(1, 2)[:, :, None]
    with torch.autocast(query_BQHD.device.type, enabled=False):
        mixed_BGRQD = weights_BGRQS @ values_BG1SD
    logsum_BGRQ = (highest + total.detach().log())[..., 0]
    return mixed_BGRQD.flatten(1, 2).transpose(1, 2).to(query_BQHD.dtype), logsum_BGRQ.flatten(1, 2)


def masked_look(query_BQHD: Tensor, keys_BSGD: Tensor, values_BSGD: Tensor, sees_BGQS: Tensor) -> Tensor:
    """(B, Q, H, D) by torch's SDPA, for queries that all see something; one mask for all heads of a group. G of `sees` may be 1."""
    groups = keys_BSGD.shape[2]
    query = _by_group(query_BQHD, groups).flatten(0, 1)
    heads = query.shape[1]
    keys, values = (
        _widened(states).transpose(1, 2).flatten(0, 1)[:, None].expand(-1, heads, -1, -1)
        for states in (keys_BSGD, values_BSGD)
    )
    mask = sees_BGQS.expand(-1, groups, -1, -1).flatten(0, 1)[:, None]
    with torch.autocast(query.device.type, enabled=False):
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    heads_first = mixed.reshape(len(query_BQHD), groups * heads, *mixed.shape[2:])
    return heads_first.transpose(1, 2).to(query_BQHD.dtype)


def _by_group(query_BQHD: Tensor, groups: int) -> Tensor:
    """(B, G, R, Q, D) in fp32 at least."""
    rows, queries, heads, width = query_BQHD.shape
    return _widened(query_BQHD).reshape(rows, queries, groups, heads // groups, width).permute(0, 2, 3, 1, 4)


def _widened(states: Tensor) -> Tensor:
    return states if states.dtype == torch.float64 else states.float()
