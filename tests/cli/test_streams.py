"""Standard streams that the shell closed: nobody looks, and nothing that was meant for one goes to another, or into a file."""

from __future__ import annotations

import subprocess
import sys

import pytest

_CHILD = "import sys; print('told'); print('an error', file=sys.stderr)"
_COMMAND = f"""
import subprocess, sys
from paceline.cli import main
def run_command(arguments):
    with open(arguments[0], "w") as mine:
        subprocess.run([sys.executable, "-c", {_CHILD!r}], check=True)
        print("a result", sys.stdin.read() == "", sys.stdout.isatty(), sys.stderr.isatty())
        print("a complaint", file=sys.stderr)
        mine.write("mine")
    return 3
main.run_command = run_command
main.main()
"""
"""A command that opens a file and starts a process, which inherits its streams."""


@pytest.mark.parametrize("closed", ["", "<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_was_closed_is_as_if_nobody_looked(closed: str, tmp_path) -> None:
    written = tmp_path / "written"
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-c", _COMMAND, str(written)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert written.read_text() == "mine"
    assert done.stdout == ("" if ">&- 2" in closed or closed == ">&-" else "told\na result True False False\n")
    assert done.stderr == ("" if "2>&-" in closed else "an error\na complaint\n")
