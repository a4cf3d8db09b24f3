"""Standard input, output and error that the shell closed (`paceline … 2>&-`): opened on nothing, as with /dev/null.

Else Python has no such stream and prints to the other one; and the first file that is opened takes the place of what was closed, so that
native code writes into it, and children have none.
"""

from __future__ import annotations

import os
import sys

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


def open_closed() -> None:
    for number, (name, mode) in enumerate(_MODES.items()):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one: those before it are open by now.
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (as long as the process)
