"""The rows of a configuration, opened or generated, and split: what every process of a run begins with.

opened = open_data(config.data)
opened.split.rows("train"), opened.sizes.items, opened.truth
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import DataError
from paceline.recipes.tenrec.data_config import Data
from paceline.recipes.tenrec.embedding import Sizes
from paceline.recipes.tenrec.generate import generate
from paceline.recipes.tenrec.split import Parameters, Split, split_table
from paceline.recipes.tenrec.table import Table


@dataclass(frozen=True, eq=False)
class Opened:
    split: Split
    sizes: Sizes

    @property
    def table(self) -> Table:
        return self.split.table


def open_data(data: Data) -> Opened:
    table = generate(data.users, data.items, data.rows, data.seed).table
    split = split_table(table, Parameters(data.split, seed=data.seed))
    return Opened(split, measure_sizes(table))


def measure_sizes(table: Table) -> Sizes:
    """One more than the largest number of each kind: 0 is none."""
    users, items = table.users, table.items
    return Sizes(
        table.num_items + 1, int(items.category.max()) + 1, int(users.gender.max()) + 1, int(users.age.max()) + 1
    )


def describe(opened: Opened, data: Data) -> dict[str, object]:
    """Sizes worth printing."""
    table, split = opened.table, opened.split
    return {
        "source": data.path or "generated",
        "users": table.num_users,
        "items": table.num_items,
        "rows": table.num_rows,
        "rows_train": len(split.train),
        "categories": opened.sizes.categories - 1,
    }
