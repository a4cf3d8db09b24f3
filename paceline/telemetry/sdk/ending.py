"""How a foreign loop ended: what an exception means, and the process's own ends that nobody announces.

A `with` block sees everything. Without one: an exception that nobody caught (sys.excepthook), sys.exit, and the end of the script
(atexit). Signals are left alone: a handler in Python cannot run while the process is stuck in C, and would keep a SIGTERM from ending it.
"""

from __future__ import annotations

import atexit
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn

from paceline.errors import PacelineError


@dataclass(frozen=True)
class Ending:
    """What run.json will say."""

    state: str
    reason: str
    exit_code: int = 0
    failure: dict[str, Any] | None = field(default=None, repr=False)
    """the fields of the event, where it failed"""


FINISHED = Ending("finished", "length")


def explain(error: object) -> Ending:
    """The ending that an exception which leaves the loop means, or whatever else somebody calls an error."""
    if not isinstance(error, BaseException):
        return _failed("Error", _text(error) or "an error without a word", 1)
    if isinstance(error, KeyboardInterrupt):
        return Ending("stopped", "ctrl_c", 130)
    if isinstance(error, SystemExit):
        return explain_exit(error.code)
    name = type(error).__name__
    said = error.problems[0].what if isinstance(error, PacelineError) else _text(error)
    trace = "".join(traceback.format_exception(error))
    return _failed(name, f"{name}: {said}".rstrip(": "), 1, where=_place(error), traceback=trace)


def explain_exit(code: object) -> Ending:
    """The ending that sys.exit with this argument means."""
    if code is None or code == 0:
        return FINISHED
    return _failed("SystemExit", f"SystemExit: {_text(code)}", code if isinstance(code, int) else 1)


def describe_reason(reason: object) -> str:
    """Why a training ended, as run.json says it."""
    return _text(reason) or FINISHED.reason


def _failed(name: str, text: str, exit_code: int, where: str = "", **more: str) -> Ending:
    problems = [{"what": text, "where": where, "do": ""}]
    failure = {"error": name, "exit_code": exit_code, "problems": problems, **more}
    return Ending("failed", text.splitlines()[0], exit_code, failure)


def _text(value: object) -> str:
    """In its own words, if it has any: an object may fail even at that, and the loop has not asked to hear of it."""
    try:
        return str(value).strip()
    except Exception:
        return f"{type(value).__name__} without words"


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


class ExitWatch:
    """Calls `finish` with how the process ends, unless it is closed first."""

    def __init__(self, finish: Callable[[Ending], None], last_step: Callable[[], int]) -> None:
        self._finish = finish
        self._last_step = last_step
        self._asked: tuple[object, int] | None = None
        self._hook, self._exit = sys.excepthook, sys.exit
        # Kept, because a bound method is another object each time it is asked for.
        self._own_hook, self._own_exit = self._on_exception, self._on_exit
        sys.excepthook = self._own_hook
        sys.exit = self._own_exit
        atexit.register(self._on_end)

    def close(self) -> None:
        """Leaves no trace, but where somebody else has put a hook over ours: that one still calls it."""
        atexit.unregister(self._on_end)
        if sys.excepthook is self._own_hook:
            sys.excepthook = self._hook
        if sys.exit is self._own_exit:
            sys.exit = self._exit

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._finish(explain(error.with_traceback(trace)))
        self._hook(kind, error, trace)

    def _on_exit(self, status: Any = None, /) -> NoReturn:
        # Only noted: whoever called may catch it and go on. At the end of the process nothing else knows the code.
        self._asked = (status, self._last_step())
        self._exit(status)

    def _on_end(self) -> None:
        is_exit = self._asked is not None and self._asked[1] == self._last_step()
        self._finish(explain_exit(self._asked[0]) if is_exit and self._asked is not None else FINISHED)
