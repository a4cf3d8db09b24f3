"""Small recommenders and batches for tests of the model's parts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.recipes.sasrec.config import Model
from paceline.recipes.sasrec.recommender import Recommender

NUM_ITEMS, LENGTH = 40, 12
VARIANTS = [{"time": time, "mhc": mhc} for time in (False, True) for mhc in (False, True)]


class FullLoss(nn.Module):
    """Cross-entropy over the catalogue, in its plainest form."""

    def forward(self, hidden: Tensor, weights: Tensor, targets: Tensor, keys: Tensor | None, negatives: Tensor | None):
        with torch.autocast(hidden.device.type, enabled=False):
            scores = F.linear(hidden.float(), weights[1:])
            return F.cross_entropy(scores, targets - 1, ignore_index=-1, reduction="sum")


def build(attention: str = "sdpa", shake: float = 0.3, loss: nn.Module | None = None, **changes: object) -> Recommender:
    """In evaluation mode, with weights moved away from the start by `shake`, so that every part matters in what is compared."""
    torch.manual_seed(0)
    config = Model(**{"width": 16, "heads": 2, "dropout": 0.3, "time_span": 8} | changes)
    model = Recommender(NUM_ITEMS, LENGTH, config, loss or FullLoss(), attention)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * shake)
        model.item_embedding.weight[0] = 0
    return model.eval()


def make_batch(lengths: tuple[int, ...] = (LENGTH, 5, 9), seed: int = 1) -> dict[str, Tensor]:
    """A training batch with the fields of evaluation besides."""
    random = torch.Generator().manual_seed(seed)
    rows, length = len(lengths), max(lengths)
    counts = torch.tensor(lengths)
    is_real = torch.arange(length) < counts[:, None]
    events = torch.randint(1, NUM_ITEMS + 1, (rows, length + 1), generator=random)
    gaps = torch.randint(0, 500, (rows, length), generator=random).double()
    return {
        "ids": torch.arange(rows),
        "items": events[:, :-1] * is_real,
        "targets": events[:, 1:] * is_real,
        "lengths": counts,
        "elapsed": gaps.cumsum(1) * is_real,
        "scale": torch.tensor([97.0, 60.0, 33.5, 120.0], dtype=torch.float64)[torch.arange(rows) % 4],
    }


def encode_padded(model: Recommender, batch: dict[str, Tensor]) -> Tensor:
    """Hidden states as (B, L, D), zeros where none was computed."""
    hidden, places = model.encode(batch)
    rows, length = batch["items"].shape
    if places is not None:
        hidden = hidden.new_zeros(rows * length, hidden.shape[1]).index_copy(0, places, hidden)
    return hidden.unflatten(0, (rows, length))
