"""The other end of an ssh connection: runs a command of paceline on this host, and ends it when the connection goes.

    python -m paceline.launch.hosts.remote train nsa --nnodes 2 --rdzv node-a:29500

A line INT or TERM on standard input is passed on as a signal; its end means that nobody can say anything any more. ssh by itself passes no
signal on, and leaves the command running when it is killed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from paceline.parentage import die_with_parent

STARTED = "paceline-remote: started"
_SIGNALS = {b"INT": signal.SIGINT, b"TERM": signal.SIGTERM}
_POLITE_S = 30.0
_AGAIN_S = 10.0


def main(words: Sequence[str]) -> int:
    child = subprocess.Popen(
        [sys.executable, "-m", "paceline", *words],
        stdin=subprocess.DEVNULL,
        preexec_fn=functools.partial(die_with_parent, os.getpid(), signal.SIGTERM),
    )
    print(STARTED, flush=True)
    threading.Thread(target=_obey, args=(child,), daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _: _signal(child, signal.SIGINT if got == signal.SIGINT else signal.SIGTERM))
    code = child.wait()
    return code if code >= 0 else 128 - code


def _obey(child: subprocess.Popen[bytes]) -> None:
    # Not through sys.stdin, whose lock would be held by this thread when the interpreter ends.
    pending = b""
    while piece := _read():
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            if line in _SIGNALS:
                _signal(child, _SIGNALS[line])
    for patience_s in (_POLITE_S, _AGAIN_S):  # asked to stop; asked twice, it ends its ranks at once
        _signal(child, signal.SIGTERM)
        deadline = time.monotonic() + patience_s
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
    _signal(child, signal.SIGKILL)


def _read() -> bytes:
    with contextlib.suppress(OSError):
        return os.read(0, 4096)
    return b""


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
