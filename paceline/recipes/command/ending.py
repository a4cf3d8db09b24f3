"""What the end of a script that failed means, by its exit code and its last lines.

explain_end(1, ["…", "CUDA out of memory"], "r/logs/rank_00000.log")   -> OutOfMemoryError
"""

from __future__ import annotations

from collections.abc import Collection

from paceline.errors import OutOfMemoryError, PacelineError, RankLostError
from paceline.launch.death import describe_signal

_MEMORY = ("out of memory", "outofmemoryerror", "memoryerror", "can't allocate memory", "cannot allocate memory")
_SHORT = 300
"""letters of a line that a message shows"""


def explain_end(code: int, tail: Collection[str], where: str) -> PacelineError:
    """`code` as Popen gives it, negative for a signal; `where` its output is kept."""
    do = "read the end of that log"
    lines = [line.strip() for line in tail if line.strip()]
    memory = [line for line in lines if any(word in line.lower() for word in _MEMORY)]
    if memory:
        return OutOfMemoryError(f"the script ran out of memory: {_short(memory[-1])}", where, "give it less per step")
    if code < 0:
        return RankLostError(f"the script was killed by {describe_signal(-code)}", where, do)
    words = f"; its last line was: {_short(lines[-1])}" if lines else ", without a word"
    return PacelineError(f"the script ended with exit code {code}{words}", where, do)


def _short(line: str) -> str:
    return line if len(line) <= _SHORT else f"{line[:_SHORT]} …"
