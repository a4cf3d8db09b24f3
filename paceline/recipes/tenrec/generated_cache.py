"""Generated rows as files that all ranks map, made by the first that asks: found by what they follow from, checked before they are used."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paceline.files import storage_errors
from paceline.recipes.prepared import Making, Prepared, check_made, make_once
from paceline.recipes.tenrec.generate import Generated, Generator
from paceline.recipes.tenrec.source import GENERATOR_VERSION
from paceline.recipes.tenrec.stored import TableWriter, map_table

_FAMILY = "tenrec-generated"
_OPTION = "data.cache=DIR"
"""what chooses the place"""
_WAIT_S = 3600.0
"""for another rank that makes the same ones"""


def load_generated(users: int, items: int, rows: int, seed: int, cache: str | Path) -> Generated:
    """What `generate` gives, out of files below `cache`: memory does not grow with the number of ranks, nor with rows."""
    generator = Generator(users, items, rows, seed)
    name = generator.identity.replace(":", "-")[:26]
    directory = Path(cache).expanduser() / name
    make_once(
        directory,
        lambda found: _is_usable(directory, found, generator),
        lambda found: _make(directory, found, generator),
        _WAIT_S,
        _OPTION,
    )
    return Generated(map_table(directory, generator.identity), generator)


def _is_usable(directory: Path, record: Prepared | None, generator: Generator) -> bool:
    if record is None:
        return False
    is_of_this = (record.family, record.name, record.version) == (_FAMILY, generator.identity, GENERATOR_VERSION)
    return is_of_this and not check_made(directory, record)


def _make(directory: Path, record: Prepared | None, generator: Generator) -> None:
    with storage_errors(directory, _OPTION), Making(directory, record, is_cache=True) as making:
        writer = TableWriter(making)
        for block in generator.blocks():
            writer.add(block.user, block.item, block.actions, block.watching, block.history)
        names = np.arange(generator.num_items + 1)
        writer.finish(generator.users(), generator.categories(), names)
        making.finish(
            family=_FAMILY,
            name=generator.identity,
            version=GENERATOR_VERSION,
            inputs={},
            source={},
            counts={"rows": writer.num_rows, "users": generator.num_users, "items": generator.num_items},
        )
