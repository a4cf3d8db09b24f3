"""Generated rows as a CSV or parquet file of the Tenrec schema, for whoever wants to see preparation work without the licensed data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import OccupiedError
from paceline.files import storage_errors
from paceline.recipes.arrow import import_arrow
from paceline.recipes.progress import Progress, Report
from paceline.recipes.tenrec.columns import ACTIONS, COLUMNS, HISTORY
from paceline.recipes.tenrec.generate import Block, Generator
from paceline.recipes.tenrec.request import check_ending


def write_generated(generator: Generator, file: Path, report: Report) -> None:
    """Whole or not there; what stands there is never replaced. Ids are those of `generate`: users from 1 on, items by their numbers."""
    check_ending(file, "--output")
    module = file.suffix.lower()[1:]
    do = "pip install 'paceline[tenrec]'"
    arrow = import_arrow(module, "a file in the Tenrec schema", str(file), do)
    if os.path.lexists(file):
        raise OccupiedError(
            "a file stands there", str(file), "move it away, or choose another place with --output FILE"
        )
    schema = arrow.schema([(name, arrow.int32()) for name in COLUMNS])
    part = file.with_name(f".{file.name}.part")
    done = 0
    with storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _open(arrow, module, part, schema) as writer:
                for block in generator.blocks():
                    writer.write(arrow.table(_columns(generator, block), schema=schema))
                    done += len(block.user)
                    report(Progress("generating", done, generator.num_rows, done, "rows"))
            os.replace(part, file)
        finally:
            part.unlink(missing_ok=True)


def _open(arrow: Any, module: str, part: Path, schema: Any) -> Any:
    if module == "parquet":
        return arrow.parquet.ParquetWriter(part, schema)
    return arrow.csv.CSVWriter(part, schema, write_options=arrow.csv.WriteOptions(quoting_header="none"))


def _columns(generator: Generator, block: Block) -> list[Any]:
    people, world = generator.people, generator.world
    columns = [
        block.user + 1,
        block.item,
        *(block.actions >> bit & 1 for bit in range(len(ACTIONS))),
        world.category[block.item],
        block.watching,
        people.gender[block.user],
        people.age[block.user],
        *(block.history[:, place] for place in range(HISTORY)),
    ]
    return [np.ascontiguousarray(column, np.int32) for column in columns]
