"""How a supervisor tells its launcher of an incident: one line on its standard output, which needs no disk.

paceline-incident {"finding":{"kind":"stall","rank":3,…},"incident":"0001-stall-rank3","place":"incidents/…","policy":"halt","action":"killed"}
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

_MARK = "paceline-incident "


def format_incident(record: Mapping[str, Any]) -> str:
    return _MARK + json.dumps(record, separators=(",", ":"), default=str)


def parse_incident(line: str) -> dict[str, Any] | None:
    """The record in a line; None if it holds none."""
    if line.startswith(_MARK):
        with contextlib.suppress(ValueError):
            record = json.loads(line[len(_MARK) :])
            return record if isinstance(record, dict) else None
    return None
