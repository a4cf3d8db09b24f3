"""Standard streams that the shell closed: nobody looks, and nothing that was meant for one goes to another, or into a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_CHILD = "import sys; print('told'); print('an error', file=sys.stderr)"
_COMMAND = f"""
import subprocess, sys
from paceline.cli import app, main
def run(arguments, **_):
    with open(arguments[0], "w") as mine:
        subprocess.run([sys.executable, "-c", {_CHILD!r}], check=True)
        print("a result", sys.stdin.read() == "", sys.stdout.isatty(), sys.stderr.isatty())
        print("a complaint", file=sys.stderr)
        mine.write("mine")
    raise SystemExit(3)
app.build_app = lambda: run
main.main()
"""
"""A command that opens a file and starts a process, which inherits its streams."""


@pytest.mark.parametrize(
    ("closed", "hears_results", "hears_complaints"),
    [
        ("", True, True),
        ("<&-", True, True),
        (">&-", False, True),
        ("2>&-", True, False),
        ("<&- >&- 2>&-", False, False),
    ],
)
def test_what_was_closed_is_as_if_nobody_looked(
    closed: str, hears_results: bool, hears_complaints: bool, tmp_path: Path
) -> None:
    written = tmp_path / "written"
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-c", _COMMAND, str(written)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert written.read_text() == "mine"
    assert done.stdout == ("told\na result True False False\n" if hears_results else "")
    assert done.stderr == ("an error\na complaint\n" if hears_complaints else "")


def test_a_file_that_somebody_opened_there_gets_nothing(tmp_path: Path) -> None:
    written = tmp_path / "written"
    code = "import sys; mine = open(sys.argv.pop(), 'w'); from paceline.cli.main import main; main()"
    command = ["sh", "-c", 'exec "$0" "$@" >&-', sys.executable, "-c", code, "--version", str(written)]
    done = subprocess.run(command, timeout=60, check=False)
    assert (done.returncode, written.read_text()) == (0, "")
