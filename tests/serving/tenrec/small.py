"""A small table with its models, untrained: for tests of what serves them."""

from __future__ import annotations

import dataclasses
import functools

import torch

from paceline.recipes.tenrec.config import Model
from paceline.recipes.tenrec.data_config import Data
from paceline.recipes.tenrec.opening import Opened, open_data
from paceline.recipes.tenrec.ranker import Ranker
from paceline.recipes.tenrec.towers import Towers


@functools.cache
def opened() -> Opened:
    """The first user has no history, and clicked nothing."""
    found = open_data(Data(users=60, items=120, rows=1500))
    table = found.table
    history, actions, rows = table.history.copy(), table.actions.copy(), table.rows_of(0)
    history[rows], actions[rows] = 0, 0
    split = dataclasses.replace(found.split, table=dataclasses.replace(table, history=history, actions=actions))
    return dataclasses.replace(found, split=split)


def ranker(mixer: str = "transformer") -> Ranker:
    torch.manual_seed(3)
    return Ranker(opened().sizes, Model(mixer=mixer, width=16, heads=2, layers=1)).eval()


def towers() -> Towers:
    torch.manual_seed(4)
    return Towers(opened().sizes, Model(kind="towers", width=8, layers=1)).eval()
