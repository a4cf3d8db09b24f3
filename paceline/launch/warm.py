"""An agent that imports torch while the launcher still reads the configuration: it saves a third of a second of every start.

Started first, told last: the torchrun command line and its environment arrive on standard input. If nothing arrives (a wrong key, say)
it ends without a trace.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.parentage import die_with_parent

_FOREIGN = re.compile(rb"^recipe:[ \t]*[\"']?command\b", re.MULTILINE)
_GONE_S = 2.0
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def start_process(command: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
    """A process in a session of its own (Ctrl-C reaches the launcher alone) that receives SIGTERM when the launcher dies."""
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=functools.partial(die_with_parent, os.getpid(), signal.SIGTERM),
        **options,
    )


def may_need_torch(target: str) -> bool:
    """False where a glance at what is to be trained says that it is a foreign script, for which nobody has to import torch."""
    try:
        return target != "command" and not _FOREIGN.search(Path(target).read_bytes())
    except OSError:  # a recipe's name, or a file that others will complain about
        return True


class WarmAgent:
    """The process that waits for its command line; close it in every case."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = start_process(
            [sys.executable, "-m", "paceline.launch.warm"], stdin=subprocess.PIPE
        )

    def take(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """The process, now running this command; None if it cannot (another program, or it has died)."""
        process = self._process
        if process is None or list(command[:3]) != TORCHRUN or process.stdin is None:
            return None
        order = {"arguments": list(command[3:]), "environment": dict(environment)}
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.close()
        except OSError:
            return None
        self._process = None
        return process

    def close(self) -> None:
        """Ends the process unless it was taken."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it reads torch from a disk that does not answer
                self._process.wait(_GONE_S)
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            self._process = None


def main() -> None:
    from torch.distributed import run

    line = sys.stdin.readline()
    if not line:
        return
    order = json.loads(line)
    os.environ.clear()
    os.environ.update(order["environment"])
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    run.main(order["arguments"])


if __name__ == "__main__":
    main()
