"""The rows of a configuration, opened or generated, and split: what every process of a run begins with.

opened = open_data(config.data)
opened.split.rows("train"), opened.sizes.items, opened.truth
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import DataError
from paceline.recipes.tenrec.data_config import Data
from paceline.recipes.tenrec.embedding import Sizes
from paceline.recipes.tenrec.generate import Generator, generate
from paceline.recipes.tenrec.generated_cache import load_generated
from paceline.recipes.tenrec.side import Side
from paceline.recipes.tenrec.side_cache import load_side
from paceline.recipes.tenrec.split import Parameters, Split, split_table
from paceline.recipes.tenrec.split_cache import load_split
from paceline.recipes.tenrec.stored import open_table
from paceline.recipes.tenrec.table import Table

_IN_MEMORY = 1_000_000
"""generated rows up to which every rank has its own: drawn in a second, and some 60 MB"""


@dataclass(frozen=True, eq=False)
class Opened:
    split: Split
    sizes: Sizes
    beside: Path | None
    """the directory where what follows from the rows is kept for all ranks; None: each has its own"""
    truth: Generator | None
    """who knows the chance of every action of every user and item; None: nobody does"""

    @property
    def table(self) -> Table:
        return self.split.table

    def side(self, name: str, actions: int) -> Side:
        """Of `actions` at least one makes a row a positive one; DataError where none has any."""
        side = load_side(self.split, name, actions, self.beside)
        if not len(side.positives):
            what = (
                f"nothing came of any of the {len(side.rows):,} rows for {name}: there is nothing to learn or to find"
            )
            raise DataError(what, "data.split", "take more rows, or the other split: user or row")
        return side


def open_data(data: Data) -> Opened:
    max_users = data.max_users if data.path is not None else None
    parameters = Parameters(data.split, seed=data.seed, max_users=max_users)
    truth, beside = None, None
    if data.path is not None:
        # All of it is read once: by the first rank of a host, while the others wait for it at their first collective.
        is_first = int(os.environ.get("LOCAL_RANK", "0")) == 0
        table = open_table(data.path, data.max_users, is_verified=is_first)
        beside = Path(data.path).expanduser()
        split = load_split(table, parameters, beside)
    elif data.rows <= _IN_MEMORY:
        made = generate(data.users, data.items, data.rows, data.seed)
        split, truth = split_table(made.table, parameters), made.generator
    else:
        made = load_generated(data.users, data.items, data.rows, data.seed, cache=data.cache)
        beside = Path(data.cache).expanduser()
        split, truth = load_split(made.table, parameters, beside), made.generator
    if split.table.num_items < 2:
        what = "all rows are of one item: there is nothing to tell it from"
        raise DataError(what, f"data.path={data.path}", "give rows of more items")
    return Opened(split, measure_sizes(split.table), beside, truth)


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
