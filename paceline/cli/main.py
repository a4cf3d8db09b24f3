"""The entry point: runs a command, turns errors into messages and exit codes. No traceback unless `--debug` is on the command line."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType

from paceline.cli.streams import open_closed
from paceline.errors import PacelineError, StorageError, UsageError

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EIO}


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an arrow that a terminal cannot show is no reason to end a run
    # Until a command listens for itself: SIGTERM and a terminal that closes end it like Ctrl-C, with the same exit code.
    _handle((signal.SIGTERM, signal.SIGHUP), signal.default_int_handler)
    try:
        try:
            code = run_command(sys.argv[1:])
        except KeyboardInterrupt:  # once more, while the first one was being told
            code = 130
        # All is said and done. Whoever is still impatient gets the same exit code, and no traceback of an interpreter that tidies up.
        _handle((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda number, frame: os._exit(code))
    except KeyboardInterrupt:
        os._exit(130)
    sys.exit(code)


def _handle(numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], object]) -> None:
    """By this from now on, where a signal is not ignored (nohup, a shell's background job)."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def run_command(arguments: Sequence[str]) -> int:
    """The exit code of one command line."""
    open_closed()
    debug = "--debug" in arguments
    try:
        from paceline.cli.app import build_app

        build_app()(list(arguments), prog_name="paceline")
    except SystemExit as ended:
        return _flushed(ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 4)
    except PacelineError as error:
        _say(error.render(), debug)
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted", debug)
        return 130
    except Exception as error:
        typed = _explain(error)
        if typed is not None:
            _say(typed.render(), debug)
            return typed.exit_code
        # Not foreseen: our mistake, not the user's.
        _say(f"internal error: {type(error).__name__}: {error}", debug)
        if not debug:
            _say("run the same command again with --debug to see where", debug)
        return 4
    return _flushed(0)


def _say(text: str, debug: bool) -> None:
    if debug:
        import traceback

        traceback.print_exc()
    _flush()
    print(text, file=sys.stderr)


def _explain(error: Exception) -> PacelineError | None:
    """What may happen to any command: its directory was removed under it, or its output has no room."""
    if not isinstance(error, OSError):
        return None
    try:
        os.getcwd()
    except FileNotFoundError:
        do = "change to a directory that exists: cd"
        return UsageError("the current directory has been removed", os.environ.get("PWD", ""), do)
    # Unbuffered output that failed leaves nothing to flush: an empty line tells whether it fails again.
    lost = _flush("\n") if error.filename is None and error.errno in _NO_ROOM else None
    return _output_error(lost) if lost is not None else None


def _flushed(code: int) -> int:
    lost = _flush()
    if lost is None:
        return code
    if isinstance(lost, BrokenPipeError):  # whoever read our output has gone: `paceline … | head`
        return 1
    typed = _output_error(lost)
    print(typed.render(), file=sys.stderr)
    return typed.exit_code


def _flush(more: str = "") -> OSError | None:
    """Writes what is left, and `more`; returns why it cannot."""
    try:
        sys.stdout.write(more)
        sys.stdout.flush()
    except OSError as error:
        # The interpreter must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def _output_error(error: OSError) -> StorageError:
    do = "free some space where it goes, or send it elsewhere"
    return StorageError(f"cannot write the output ({error.strerror or error})", "standard output", do)
