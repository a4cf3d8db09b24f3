"""Native sparse attention as the paper says it, for reading and for holding the other paths to: one query after another.

    mixed_TW, blocks_TGn = attend(hidden_TW, dict(attention.named_parameters()), documents_T, Sizes(heads=12, groups=2, …))

It shares no code with the other paths, only the names of the weights. Whatever type the numbers have, float64 included, all is computed
in it; autograd gives the gradients. With `blocks_TGn` given, nothing is selected: near-ties flip in lower precision.

Shapes: T tokens, W width of the model, H heads, G groups, R heads of a group, D width of a head, n selected blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sizes:
    """All sizes that the weights do not tell."""

    heads: int
    groups: int
    block: int
    stride: int
    selection_block: int
    selected: int
    window: int
    gate: str
    """sigmoid or softmax"""
    initial: int = 1
    local: int = 2


def attend(
    hidden_TW: Tensor,
    weights: Mapping[str, Tensor],
    documents_T: Sequence[int],
    sizes: Sizes,
    blocks_TGn: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What the attention gives for a row of packed documents, and the blocks that were looked at (-1: none).

    Tokens side by side with the same number in `documents_T` are one document.
    """
    borders = [t for t in range(len(documents_T)) if t == 0 or documents_T[t] != documents_T[t - 1]]
    mixed, looked_at = [], []
    for begin, end in zip(borders, [*borders[1:], len(documents_T)], strict=True):
        given = None if blocks_TGn is None else blocks_TGn[begin:end].tolist()
        document, chosen = _attend_document(hidden_TW[begin:end], weights, sizes, given)
        mixed.append(document)
        looked_at.append(chosen)
    return torch.cat(mixed), torch.cat(looked_at)


def _attend_document(
    hidden_TW: Tensor, weights: Mapping[str, Tensor], sizes: Sizes, given: list[list[list[int]]] | None
) -> tuple[Tensor, Tensor]:
    T, H, G = len(hidden_TW), sizes.heads, sizes.groups
    R = H // G
    queries = (hidden_TW @ weights["project_query.weight"].T).view(T, H, -1)
    D = queries.shape[-1]
    # Each branch has keys and values of its own.
    states = (hidden_TW @ weights["project_states.weight"].T).view(T, 3, 2, G, D)
    gates = (hidden_TW @ weights["gates.project.weight"].T + weights["gates.project.bias"]).view(T, H, 3)
    gates = torch.sigmoid(gates) if sizes.gate == "sigmoid" else torch.softmax(gates, dim=-1)

    places = list(range(T))
    turned = _turn(queries, places)
    selected_keys, selected_values = _turn(states[:, 1, 0], places), states[:, 1, 1]
    window_keys, window_values = _turn(states[:, 2, 0], places), states[:, 2, 1]
    compressed_keys, compressed_values = [], []
    for begin in range(0, T - sizes.block + 1, sizes.stride):
        inside = slice(begin, begin + sizes.block)
        key = _compress(states[inside, 0, 0], weights, "compress_keys")
        compressed_keys.append(_turn(key[None], [begin])[0])
        compressed_values.append(_compress(states[inside, 0, 1], weights, "compress_values"))

    mixed, looked_at = [], []
    for t in range(T):
        num_seen = sum(1 for i in range(len(compressed_keys)) if i * sizes.stride + sizes.block - 1 <= t)
        chosen_t = []
        for g in range(G):
            query = turned[t, g * R : (g + 1) * R]
            gate = gates[t, g * R : (g + 1) * R]
            compressed, importance = torch.zeros_like(query), [0.0] * len(compressed_keys)
            if num_seen:
                keys = torch.stack([key[g] for key in compressed_keys[:num_seen]])
                values = torch.stack([value[g] for value in compressed_values[:num_seen]])
                compressed, probability = _soft_look(query, keys, values)
                importance[:num_seen] = probability.sum(0).tolist()
            chosen = _choose(importance, t, sizes) if given is None else [j for j in given[t][g] if j >= 0]
            tokens = [s for j in chosen for s in range(j * sizes.selection_block, (j + 1) * sizes.selection_block)]
            tokens = [s for s in tokens if s <= t]
            selected, _ = _soft_look(query, selected_keys[tokens, g], selected_values[tokens, g])
            recent = slice(max(0, t - sizes.window + 1), t + 1)
            window, _ = _soft_look(query, window_keys[recent, g], window_values[recent, g])
            mixed.append(gate[:, 0:1] * compressed + gate[:, 1:2] * selected + gate[:, 2:3] * window)
            chosen_t.append(sorted(chosen) + [-1] * (sizes.selected - len(chosen)))
        looked_at.append(chosen_t)
    joined = torch.stack(mixed).view(T, H * D)
    return joined @ weights["project_out.weight"].T, torch.tensor(looked_at, device=hidden_TW.device)


def _soft_look(query_RD: Tensor, keys_SD: Tensor, values_SD: Tensor) -> tuple[Tensor, Tensor]:
    """(R, D) and the probabilities (R, S)."""
    scores = query_RD @ keys_SD.T / query_RD.shape[-1] ** 0.5
    probability = torch.softmax(scores, dim=-1)
    return probability @ values_SD, probability


def _turn(states_TXD: Tensor, positions: list[int]) -> Tensor:
    """RoPE: coordinates c and c + D/2 of each head are one complex number, turned by position · 10000^(-2c/D)."""
    half = states_TXD.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float64, device=states_TXD.device) / half)
    angle = torch.tensor(positions, dtype=torch.float64, device=states_TXD.device)[:, None, None] * frequency
    cosine, sine = torch.cos(angle).to(states_TXD.dtype), torch.sin(angle).to(states_TXD.dtype)
    real, imaginary = states_TXD[..., :half], states_TXD[..., half:]
    return torch.cat([real * cosine - imaginary * sine, real * sine + imaginary * cosine], dim=-1)


def _compress(tokens_lGD: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    """(G, D): each group's block of tokens as one."""
    placed = tokens_lGD + weights[f"{name}.place_embedding"][:, None]
    flat = placed.permute(1, 0, 2).reshape(tokens_lGD.shape[1], -1)
    hidden = flat @ weights[f"{name}.expand.weight"].T + weights[f"{name}.expand.bias"]
    hidden = hidden * torch.sigmoid(hidden)
    return tokens_lGD.mean(0) + hidden @ weights[f"{name}.contract.weight"].T


def _choose(importance: list[float], t: int, sizes: Sizes) -> list[int]:
    """The forced blocks and the most important others, by the paper's equation 9; of equals the first."""
    own = t // sizes.selection_block
    forced = [j for j in range(own + 1) if j < sizes.initial or j > own - sizes.local]
    scores = [_score(importance, j, sizes) for j in range(own + 1)]
    others = sorted((j for j in range(own + 1) if j not in forced), key=lambda j: (-scores[j], j))
    return forced + others[: sizes.selected - len(forced)]


def _score(importance: list[float], block: int, sizes: Sizes) -> float:
    """Equation 9 as it stands, whose blocks count from 1; those before the first are none."""
    score, j = 0.0, block + 1
    for m in range(sizes.selection_block // sizes.stride):
        for n in range(sizes.block // sizes.stride):
            i = (sizes.selection_block // sizes.stride) * j - m - n
            if 1 <= i <= len(importance):
                score += importance[i - 1]
    return score
