"""How much each head listens to each branch: a gate per token, head and branch, and what it is worth knowing about them.

    gates_BTH3 = Gates(width, heads, "sigmoid")(hidden_BTW)      compressed, selected, window

sigmoid, as in the paper: each branch by itself, from 0 to 1. softmax: they share out 1. Both begin evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.engine.seen import Seen

BRANCHES = ("compressed", "selected", "window")
_KEPT = 1024
"""tokens of a forward, spread over it; some of them several times where it has fewer"""
_COLLAPSED = 0.95
"""a head that gives one branch this share of its gates, on average, has given up the others"""


class Gates(nn.Module):
    def __init__(self, width: int, heads: int, kind: str) -> None:
        super().__init__()
        self._heads = heads
        self._kind = kind
        self.project = nn.Linear(width, heads * len(BRANCHES))
        self._seen = Seen(empty=1 / len(BRANCHES))

    def forward(self, hidden_BTW: Tensor) -> Tensor:
        return self.open(F.linear(hidden_BTW, self.project.weight))

    def open(self, projected_BTf: Tensor) -> Tensor:
        """From what the projection's weights alone have made of the tokens, f = 3 · H; its bias is added here."""
        # Their gradients nearly cancel out over a row: nothing is left of a bias of three numbers if each step on the way rounds.
        wide = projected_BTf.to(torch.promote_types(projected_BTf.dtype, torch.float32)) + self.project.bias
        logits = torch.unflatten(wide, -1, (self._heads, len(BRANCHES)))
        gates_BTH3: Tensor = logits.sigmoid() if self._kind == "sigmoid" else logits.softmax(-1)
        if self.training:
            tokens = gates_BTH3.detach().flatten(0, 1)
            # As many as there is room for, always: of fewer, what was there before would be read with them.
            spread_K = torch.arange(_KEPT, device=tokens.device) * len(tokens) // _KEPT
            self._seen.keep(tokens[spread_K].float())
        return gates_BTH3

    def make_room(self, device: torch.device) -> None:
        """For what a training forward leaves to be looked at: before it, so that a compiler does not meet a model that is about to change."""
        self._seen.make_room((self._heads, len(BRANCHES)), device)

    def read_shares(self) -> Tensor | None:
        """(K, H, 3): what share of a head's gates each branch had, for tokens spread over the last training forward; None before it."""
        gates_KH3 = self._seen.read()
        return None if gates_KH3 is None else gates_KH3 / gates_KH3.sum(-1, keepdim=True).clamp(min=1e-12)


def mix_branches(gates_BTH3: Tensor, compressed_BTHD: Tensor, selected_BTHD: Tensor, window_BTHD: Tensor) -> Tensor:
    """In the type of the branches; summed in that of the gates, where it is the wider one."""
    by_compressed, by_selected, by_window = gates_BTH3.unsqueeze(-1).unbind(-2)
    mixed_BTHD = by_compressed * compressed_BTHD + by_selected * selected_BTHD + by_window * window_BTHD
    return mixed_BTHD.to(compressed_BTHD.dtype)


def summarise(layers: Iterable[Gates]) -> dict[str, float]:
    """Entropy (1: all branches alike), share of each branch, share of collapsed heads, over all layers; empty before the first forward."""
    shares = [share for gates in layers if (share := gates.read_shares()) is not None]
    if not shares:
        return {}
    shares_LKH3 = torch.stack(shares)
    entropy = -(shares_LKH3 * shares_LKH3.clamp(min=1e-12).log()).sum(-1).mean() / math.log(len(BRANCHES))
    of_branches = shares_LKH3.mean((0, 1, 2))
    collapsed = (shares_LKH3.mean(1).amax(-1) > _COLLAPSED).float().mean()
    values = torch.cat([torch.stack([entropy, collapsed]), of_branches]).tolist()
    names = ("gate_entropy", "gate_collapsed", *(f"gate_{branch}" for branch in BRANCHES))
    return dict(zip(names, values, strict=True))
