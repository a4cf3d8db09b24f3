"""Generated rows as files that all ranks map, made by the first that asks: found by what they follow from, checked before they are used."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paceline.files import storage_errors
from paceline.recipes.prepared import Making, Prepared, check_made, read_prepared, taking
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
    if _find_faults(directory, read_prepared(directory), generator):
        with taking(directory, _WAIT_S, _OPTION):
            # Another rank may have made it while this one waited.
            record = read_prepared(directory)
            if _find_faults(directory, record, generator):
                _make(directory, record, generator)
    return Generated(map_table(directory, generator.identity), generator)


def _find_faults(directory: Path, record: Prepared | None, generator: Generator) -> list[str]:
    """Why what is there cannot be used; empty: it can."""
    if record is None:
        return ["there is none"]
    if (record.family, record.name, record.version) != (_FAMILY, generator.identity, GENERATOR_VERSION):
        return ["it is of something else"]
    return check_made(directory, record)


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
