"""A cheap check that the parameters are still identical on all ranks; names the rank and the parameter where they are not.

One checksum per parameter over its bits, gathered from all ranks: a pass over the weights and a few bytes of communication.
"""

from __future__ import annotations

from collections import Counter

import torch

from paceline.engine.ranks import Ranks
from paceline.errors import DesyncError

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum_parameters(model: torch.nn.Module) -> torch.Tensor:
    """One int64 per parameter, on the host."""
    return torch.stack([_checksum(parameter.detach()) for parameter in model.parameters()]).cpu()


def _checksum(values: torch.Tensor) -> torch.Tensor:
    """Sums of rows and of columns, each with a weight of its own, so that moved values are noticed as well as changed ones."""
    bits = values.contiguous().view(_BITS[values.element_size()]).reshape(len(values) if values.dim() > 1 else 1, -1)
    rows, columns = bits.sum(dim=1, dtype=torch.int64), bits.sum(dim=0, dtype=torch.int64)
    # Odd weights, in arithmetic that wraps around: no single change can cancel itself. Columns count otherwise than rows (a transpose).
    return _weighted(rows) + 1_000_003 * _weighted(columns)


def _weighted(sums: torch.Tensor) -> torch.Tensor:
    return (sums * (2 * torch.arange(len(sums), device=sums.device) + 1)).sum()


def check_parameters(model: torch.nn.Module, ranks: Ranks, step: int) -> None:
    """Raises on every rank alike if a rank's parameters differ from the others'."""
    if ranks.world_size == 1:
        return
    table = ranks.gather(checksum_parameters(model))
    rows = [tuple(row.tolist()) for row in table]
    if len(set(rows)) == 1:
        return
    names = [name for name, _ in model.named_parameters()]
    (common, votes), *_ = Counter(rows).most_common(1)
    differing = [index for index, values in enumerate(zip(*rows, strict=True)) if len(set(values)) > 1]
    shown = ", ".join(names[index] for index in differing[:3]) + (" …" if len(differing) > 3 else "")
    if 2 * votes > len(rows):
        odd = [rank for rank, row in enumerate(rows) if row != common]
        who = f"rank {odd[0]} differs" if len(odd) == 1 else f"ranks {', '.join(map(str, odd))} differ"
        who += f" from the {votes} others"
    else:
        who = f"no majority among {len(rows)} ranks says which one is wrong"
    raise DesyncError(
        f"parameters are no longer identical on all ranks at step {step}: {who}, in {len(differing)} of {len(names)} parameters",
        shown,
        "look for a rank-dependent update in the model (a buffer, a hook, an in-place change), "
        "or suspect that rank's memory; parallel.check_every=1 finds the first step",
    )
