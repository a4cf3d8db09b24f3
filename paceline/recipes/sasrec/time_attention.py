"""TiSASRec's attention (after arXiv 2004.11780): keys and values also say how long ago, and at which position, an event was.

    logit_ij = q_i · (k_j + pk_j + rk_r) / sqrt(d)      output_i = sum_j a_ij (v_j + pv_j + rv_r)      r = bin of the time between i and j

rk_r for every pair would be a tensor of batch × length × length × width. Instead q · rk is computed once per bin, (B, H, L, R), and
looked up by r; and attention weights are summed per bin, (B, H, L, R), before they meet rv. The look-up's backward and the sum are
scatter_add: on CUDA atomic, and deterministic under torch.use_deterministic_algorithms (for any number of dimensions; index_add would be
as well, but works along one dimension only). Both stay in fp32, where many small terms add up.

With rotary positions q and k are turned, and there are no pk and pv; q meets rk unturned, as an interval has no place.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from paceline.engine.attend import hide_future
from paceline.recipes.sasrec.attention import join_heads, split_heads
from paceline.recipes.sasrec.config import Model
from paceline.recipes.sasrec.frame import Frame
from paceline.recipes.sasrec.relations import Relations
from paceline.recipes.sasrec.rotary import rotate


class TimeAttention(nn.Module):
    """Causal attention with relations; always written out, as no fused kernel sums values per bin."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self._heads = config.heads
        self._dropout = config.attention_dropout
        self.project_in = nn.Linear(config.width, 3 * config.width)
        self.project_out = nn.Linear(config.width, config.width)

    def forward(self, hidden_TD: Tensor, frame: Frame) -> Tensor:
        assert frame.relations is not None
        query, key, value = split_heads(frame.pad(self.project_in(hidden_TD)), self._heads)
        query = query / math.sqrt(query.shape[-1])
        by_interval_BHLR = query @ frame.relations.interval_keys_HRD.to(query.dtype).transpose(-2, -1)
        if frame.rotation is not None:
            query, key = rotate(query, frame.rotation), rotate(key, frame.rotation)
        dropout = self._dropout if self.training else 0.0
        mixed_BHLD = attend_with_relations(query, key, value, by_interval_BHLR, frame.relations, dropout)
        projected: Tensor = self.project_out(frame.pack(join_heads(mixed_BHLD)))
        return projected


def attend_with_relations(
    query: Tensor, key: Tensor, value: Tensor, by_interval_BHLR: Tensor, relations: Relations, dropout: float
) -> Tensor:
    """(B, H, L, D); queries are scaled already, `by_interval` is their product with each bin's key."""
    if relations.position_keys_HLD is not None and relations.position_values_HLD is not None:
        key, value = key + relations.position_keys_HLD, value + relations.position_values_HLD
    bins_BHLL = relations.bins_BLL[:, None].expand(-1, query.shape[1], -1, -1)
    by_interval_BHLR = by_interval_BHLR.float()
    scores_BHLL = (query @ key.to(query.dtype).transpose(-2, -1)).float() + by_interval_BHLR.gather(-1, bins_BHLL)
    weights_BHLL = F.dropout(hide_future(scores_BHLL).softmax(-1), dropout)
    per_bin_BHLR = weights_BHLL.new_zeros(by_interval_BHLR.shape).scatter_add(-1, bins_BHLL, weights_BHLL)
    values_HRD = relations.interval_values_HRD
    return weights_BHLL.to(query.dtype) @ value.to(query.dtype) + per_bin_BHLR.to(query.dtype) @ values_HRD.to(
        query.dtype
    )
