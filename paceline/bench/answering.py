"""How a bench that runs in a process of its own answers: one line of JSON, or a typed failure and its exit code.

def main(argv): return answer(lambda: measure(…))
if __name__ == "__main__": end(main)
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from paceline.engine.failure import explain_exception
from paceline.parentage import die_with_parent
from paceline.telemetry.failure import format_failure


def answer(measure: Callable[[], Mapping[str, Any]]) -> int:
    try:
        print(json.dumps(measure()))
        return 0
    except BaseException as error:
        typed, _ = explain_exception(error, Path(), 0)
        text = "".join(traceback.format_exception(error))
        print(format_failure(typed.to_record() | {"traceback": text}), file=sys.stderr)
        return typed.exit_code


def end(main: Callable[[list[str]], int]) -> NoReturn:
    """Run it, and end with its parent."""
    die_with_parent(os.getppid())
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # torch's own end takes a second or more
