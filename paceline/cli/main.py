"""The entry point: runs a command, turns errors into messages and exit codes. No traceback unless `--debug` is on the command line."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence

from paceline.errors import PacelineError


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an arrow that a terminal cannot show is no reason to end a run
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        # Until a command listens for itself: SIGTERM ends it like Ctrl-C, with the same exit code.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """The exit code of one command line."""
    from paceline.cli.app import build_app

    debug = "--debug" in arguments
    try:
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
    _flushed(0)
    print(text, file=sys.stderr)


def _flushed(code: int) -> int:
    if sys.stdout is None:
        return code
    try:
        sys.stdout.flush()
    except OSError:
        # Whoever read our output has gone (`paceline … | head`), or its disk is full: the interpreter must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
