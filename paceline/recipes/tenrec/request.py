"""What somebody wants prepared, and whether it can be asked for at all. No torch, no numpy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import DataError, UsageError

ENDINGS = (".csv", ".parquet")


@dataclass(frozen=True)
class Request:
    """What was typed."""

    input: Path
    output: Path
    max_users: int | None = None
    """None: all; else the first that occur in the file, with all their rows"""

    def parameters(self) -> dict[str, Any]:
        """What the outcome follows from, beside the input's content."""
        return {"max_users": self.max_users}

    def check(self) -> None:
        if self.max_users is not None and self.max_users < 1:
            raise UsageError(f"--max-users {self.max_users} is no number of users", "command line", "give 1 or more")
        check_ending(self.input, "--input")
        if not self.input.exists():
            raise DataError(
                "the file does not exist", str(self.input), "give a CSV or parquet file of the Tenrec schema"
            )
        if not self.input.is_file():
            raise DataError("this is no file", str(self.input), "name the CSV or parquet file itself")


def check_ending(file: Path, flag: str) -> None:
    if file.suffix.lower() not in ENDINGS:
        what = f"{file.name!r} ends neither with .csv nor with .parquet"
        raise UsageError(what, f"{flag} {file}", "name a CSV or parquet file so")
