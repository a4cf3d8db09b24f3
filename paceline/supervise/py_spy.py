"""py-spy, where it is installed: the stacks of a process that cannot answer by itself, read from outside.

read_stacks(4711)      -> "Process 4711: python train.py\\nThread 4711 (idle): …", or why not
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

_TIMEOUT_S = 3.0
MISSING = "py-spy is not installed (pip install 'paceline[stacks]')"


@functools.cache
def find_program() -> str | None:
    """On the path, or beside the Python that runs us."""
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(beside) if beside.exists() else None)


def read_stacks(pid: int, *, is_stopped: bool = False) -> tuple[str, str]:
    """(stacks, "") or ("", why there are none)."""
    program = find_program()
    if program is None:
        return "", MISSING
    # A stopped process stands still anyway; to stop it once more, and to let it go, could set it running.
    command = [program, "dump", "--pid", str(pid), *(["--nonblocking"] if is_stopped else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return "", f"py-spy did not answer in {_TIMEOUT_S:.0f} s"
    except OSError as error:
        return "", f"py-spy cannot be started ({error.strerror})"
    if done.returncode or "Thread" not in done.stdout:
        why = next((line.strip() for line in reversed(done.stderr.splitlines()) if line.strip()), "no stacks")
        return "", f"py-spy: {why}"
    return done.stdout, ""
