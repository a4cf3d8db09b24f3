"""`paceline watch`: a live view of a running run, and its supervisor where it has none.

Exit code 0: the run has ended, or was looked at once; 5: it was halted while it was watched.
"""

from __future__ import annotations

import contextlib
import json as json_module
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.arguments import Debug, Json, RunDirectory
from paceline.errors import HaltedError, UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from paceline.supervise.attendance import Attendance

_PLAIN_EVERY_S = 5.0
_JSON_EVERY_S = 1.0


def command(
    run: RunDirectory,
    halt_on_stall: Annotated[
        bool,
        typer.Option("--halt-on-stall", help="When the run stands still: end it, so that it can be started again."),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Look once, and leave.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Watch a run: where each rank is, its pace and wait, what is wrong; a run that nobody supervises is supervised meanwhile.

    Example: paceline watch runs/sasrec-1a2b3c4d --halt-on-stall
    """
    from paceline.supervise.attendance import Attendance, load_running

    if once and halt_on_stall:
        raise UsageError(
            "--once looks, and does not wait for a stall", "flag --halt-on-stall", "leave out one of the two"
        )
    found = load_running(run)
    if isinstance(found, str):
        _say_end(found, json)
        return
    with Attendance(run.absolute(), found, wants_halt=halt_on_stall, is_glance=once) as attendance:
        is_live = not once and sys.stdout.isatty()
        view = _JsonView() if json else _LiveView() if is_live else _PlainView()
        with contextlib.closing(view):
            _follow(attendance, view, once)
    if attendance.halted is not None:
        raise HaltedError(*attendance.halted)
    if not once:
        _say_end(attendance.ending, json)


def _follow(attendance: Attendance, view: Any, once: bool) -> None:
    for note in attendance.notes:
        view.say(note)
    while attendance.is_running:
        attendance.poll()
        if once:
            # A second look, a moment later: without it there is no pace.
            time.sleep(1.0)
            attendance.poll()
        view.show(attendance.glance, is_forced=once)
        for line in attendance.take_lines():
            view.say(line)
        if once:
            return
        attendance.wait()


def _say_end(ending: str, json: bool) -> None:
    if json:
        print(json_module.dumps({"v": 1, "ended": ending}))
    else:
        print(ending)


class _PlainView:
    """Lines, where there is no terminal; a table where one looks once."""

    def __init__(self) -> None:
        self._shown = float("-inf")

    def show(self, glance: dict[str, Any], is_forced: bool) -> None:
        if is_forced:
            from paceline.launch.progress import build_console
            from paceline.supervise.view import render_table

            build_console().print(render_table(glance))
        elif time.monotonic() - self._shown >= _PLAIN_EVERY_S:
            from paceline.supervise.view import render_line

            self._shown = time.monotonic()
            print(render_line(glance), flush=True)

    def say(self, line: str) -> None:
        print(line, flush=True)

    def close(self) -> None:
        pass


class _JsonView:
    """One object a second, one per line."""

    def __init__(self) -> None:
        self._shown = float("-inf")

    def show(self, glance: dict[str, Any], is_forced: bool) -> None:
        if is_forced or time.monotonic() - self._shown >= _JSON_EVERY_S:
            self._shown = time.monotonic()
            print(json_module.dumps(glance), flush=True)

    def say(self, line: str) -> None:
        pass  # findings are in the objects

    def close(self) -> None:
        pass


class _LiveView:
    """A table that stays in its place."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console: Console = Console(highlight=False)
        self._live: Live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, glance: dict[str, Any], is_forced: bool) -> None:
        from paceline.supervise.view import render_table

        self._live.update(render_table(glance, self._console.height), refresh=True)

    def say(self, line: str) -> None:
        self._console.print(line)

    def close(self) -> None:
        self._live.stop()
