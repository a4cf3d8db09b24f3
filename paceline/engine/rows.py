"""Tables of embeddings with more rows than a step ever touches: their gradient is the rows of a batch, never a dense tensor.

    self.items = RowTable(3_300_000, 512)       # in a model
    self.items(ids)                             # (…,) whole numbers -> (…, 512)

The engine finds them by their class. Their weights are parameters of the model like others, to be saved, exported and evaluated; tables.py
has their gradients travel and their rows updated.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from paceline.errors import UsageError

_FACTORS = (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9)
"""Large and odd, one for each hash: the upper bits of a product depend on all of a number's."""
_UPPER = 32
_MOST_ROWS = 2**31 - 1
"""Numbers of rows travel in 32 bits."""


class RowTable(nn.Module):
    """`num_rows` rows of `width` numbers, looked up by their numbers.

    With `hash_rows` there are only so many, and each number has the sum of two of them, by two hashes: of the numbers that share one, all but
    one in `hash_rows` differ in the other.
    """

    def __init__(self, num_rows: int, width: int, hash_rows: int | None = None) -> None:
        super().__init__()
        held = num_rows if hash_rows is None else hash_rows
        if min(num_rows, width, held) < 1 or held > _MOST_ROWS:
            raise UsageError(
                f"a table of {num_rows:,} rows of width {width:,}"
                + (f", hashed to {hash_rows:,}" if hash_rows else ""),
                "paceline.engine.rows.RowTable",
                f"give it at least one row and one column, and at most {_MOST_ROWS:,} rows to hold",
            )
        self.num_rows, self.width, self.hash_rows = num_rows, width, hash_rows
        self.weight = nn.Parameter(torch.empty(held, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Rows, or sums of two, whose numbers have a deviation of 0.02."""
        nn.init.normal_(self.weight, std=0.02 if self.hash_rows is None else 0.02 * 2**-0.5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        # Where there is no gradient, a plain lookup: a compiler makes the sparse one a call by itself, and nothing is fused with it.
        is_sparse = torch.is_grad_enabled()
        if self.hash_rows is None:
            return functional.embedding(ids.long(), self.weight, sparse=is_sparse)
        return functional.embedding(_hash(ids, self.hash_rows), self.weight, sparse=is_sparse).sum(0)

    def extra_repr(self) -> str:
        hashed = f", hash_rows={self.hash_rows}" if self.hash_rows is not None else ""
        return f"{self.num_rows}, {self.width}{hashed}"


def find_tables(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of the model's tables that are trained, by the names of the parameters; tied ones once."""
    weights = {module.weight for module in model.modules() if isinstance(module, RowTable)}
    return {name: p for name, p in model.named_parameters() if p.requires_grad and p in weights}


def _hash(ids: torch.Tensor, num_rows: int) -> torch.Tensor:
    """(2, …): two rows for each number, the same in every run."""
    products = torch.stack([ids.long() * factor for factor in _FACTORS])
    return ((products ^ (products >> _UPPER)) & 0x7FFFFFFF) % num_rows
