"""How a layer of the ranker mixes what it sees: by attention, or by Fastformer's two global vectors; both with isolated candidates.

    mixed = mixer(query, key, value, num_context, bias)

The first `num_context` entries are the context (the user and the history), which mixes with itself alone; each of the others is a candidate,
which mixes with the context and itself. Both compute for a candidate exactly what they would for the sequence "context, this candidate".

Shapes: B samples, H heads, L entries, S of the context, C candidates, D width of a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.recipes.tenrec.isolation import blend, dot, dot_all, pool


class Attention(nn.Module):
    """Scaled dot products and a softmax: a transformer's."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, num_context: int, bias_B11S: Tensor) -> Tensor:
        context_key, candidate_key = _divide(key, num_context)
        # All entries look at the context in one product; those of the context are in it already, and add nothing of their own.
        to_self = F.pad(dot(query[:, :, num_context:], candidate_key), (0, 0, num_context, 0), value=-math.inf)
        return blend(dot_all(query, context_key, bias_B11S), to_self, value[:, :, :num_context], value)


class Fastformer(nn.Module):
    """Additive attention: a global query made of all queries meets each key, a global key made of those meets each value.

    What a candidate's global vectors are made of, the context and itself, differs from candidate to candidate by one entry: the context's
    share of the sums is a matrix product for all of them.
    """

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.query_weights = nn.Parameter(torch.empty(heads, 1, head_width))
        self.key_weights = nn.Parameter(torch.empty(heads, 1, head_width))
        for weights in (self.query_weights, self.key_weights):
            nn.init.normal_(
                weights
            )  # scores are scaled by the root of the width: they begin of the size that dot products have

    def forward(self, query: Tensor, key: Tensor, value: Tensor, num_context: int, bias_B11S: Tensor) -> Tensor:
        context_query, candidate_query = _divide(query, num_context)
        context_key, candidate_key = _divide(key, num_context)
        context_value, candidate_value = _divide(value, num_context)
        to_context_BH1S = dot_all(self.query_weights, context_query, bias_B11S)
        global_query = pool(to_context_BH1S, context_query)
        looking = dot_all(self.key_weights * global_query, context_key, bias_B11S)
        context = global_query * pool(looking, context_key) * context_value
        # The same for each candidate, whose own entry joins the sums.
        to_context_BHCS = to_context_BH1S.expand(-1, -1, candidate_query.shape[-2], -1)
        global_query = blend(to_context_BHCS, dot(self.query_weights, candidate_query), context_query, candidate_query)
        looking = self.key_weights * global_query
        global_key = global_query * blend(
            dot_all(looking, context_key, bias_B11S), dot(looking, candidate_key), context_key, candidate_key
        )
        return torch.cat((context, global_key * candidate_value), -2)


def _divide(entries_BHLD: Tensor, num_context: int) -> tuple[Tensor, Tensor]:
    return entries_BHLD[:, :, :num_context], entries_BHLD[:, :, num_context:]
