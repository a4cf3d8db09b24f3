"""The arguments of start_run: refused with a typed error before anything is written, because later nothing may stop the loop.

check_whole("log_every", 2.5, least=1)      # UsageError: log_every=2.5 is not a whole number
"""

from __future__ import annotations

import math
import operator
import os
from pathlib import Path
from typing import Any

from paceline.errors import UsageError

_MOST = 2**63 - 1


def check_whole(name: str, value: Any, least: int = 0) -> int:
    """A whole number, of whatever type: numpy and torch have their own."""
    try:
        number = operator.index(value)
    except Exception as error:
        raise _refused(name, value, "is not a whole number", f"{name}={least + 10}") from error
    if not least <= number <= _MOST:
        why = "must not be negative" if number < 0 and least == 0 else f"must be from {least} to {_MOST}"
        raise _refused(name, number, why, f"{name}={least + 10}")
    return number


def check_seconds(name: str, value: Any) -> None:
    try:
        is_usable = not isinstance(value, str) and 0 <= float(value) < math.inf
    except Exception:
        is_usable = False
    if not is_usable:
        raise _refused(name, value, "is not a number of seconds from 0", f"{name}=5.0")


def check_word(name: str, value: Any) -> None:
    """A text that a file can hold."""
    if not isinstance(value, str):
        raise _refused(name, value, "is not a text", f"{name}='…'")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _refused(name, value, "cannot be written as UTF-8", f"{name}='…'") from error


def check_directory(value: Any) -> Path:
    try:
        path = Path(value).absolute()
        if b"\0" in os.fsencode(path):
            raise ValueError("a path holds no null character")
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{value!r} is not a path", "start_run(out)", "name a directory, such as 'runs/mine'"
        ) from error
    return path


def _refused(name: str, value: Any, why: str, example: str) -> UsageError:
    return UsageError(f"{name}={value!r} {why}", f"start_run({name}=…)", f"leave {name} out, or write {example}")
