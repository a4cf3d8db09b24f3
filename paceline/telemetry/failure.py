"""How a failing rank tells its launcher why: one line on the standard error it was started with, which needs no disk.

    paceline-failure {"error":"DataError","exit_code":2,"problems":[…],"rank":1,"step":12,"secondary":false,"traceback":"…"}

`secondary` is true for a rank that failed because others had gone: it is never the cause.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

_MARK = "paceline-failure "


def format_failure(record: Mapping[str, Any]) -> str:
    return _MARK + json.dumps(record, separators=(",", ":"))


def parse_failure(line: str) -> dict[str, Any] | None:
    """The record in a line; None if it holds none."""
    _, mark, text = line.partition(_MARK)
    if mark:
        with contextlib.suppress(json.JSONDecodeError):
            record = json.loads(text)
            return record if isinstance(record, dict) else None
    return None
