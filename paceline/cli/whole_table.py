"""A table with every digit of its figures, on a narrow terminal too; in a pipe or a file each row is one line, as long as it is."""

from __future__ import annotations

import sys
from typing import Any

_ENDLESS = 10_000
"""columns, of which a table takes what it needs"""


def print_whole(table: Any) -> None:
    from rich.console import Console

    for column in table.columns:
        column.min_width = max(len(word) for cell in (column.header, *column.cells) for word in cell.split() or [""])
    Console(soft_wrap=True, width=None if sys.stdout.isatty() else _ENDLESS).print(table)
