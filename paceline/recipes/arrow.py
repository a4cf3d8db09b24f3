"""pyarrow's readers and writers, which an extra installs. No torch, no numpy."""

from __future__ import annotations

import importlib
from typing import Any

from paceline.errors import UsageError


def import_arrow(module: str, what: str, where: str, do: str) -> Any:
    """pyarrow, with one of its modules loaded; `what` needs it, and `do` names the extra."""
    try:
        importlib.import_module(f"pyarrow.{module}")
        return importlib.import_module("pyarrow")
    except ImportError:
        raise UsageError(f"{what} needs the package pyarrow, which is not installed", where, do) from None
