"""A script's output cut into lines, none of which is longer than a person would read: of a long one the head and the tail.

lines = LineSplitter()
lines.feed(b"iter 1\\riter 2\\nit")   -> ["iter 1", "iter 2"]
lines.feed(b"")                      -> ["it"]: nothing more comes

A progress bar without line ends, or a tensor printed whole, costs neither memory nor time: what is kept has a bound.
"""

from __future__ import annotations

MOST_BYTES = 32 * 1024
"""of a line that is read; a line of a log has hundreds"""
_HALF = MOST_BYTES // 2
_OF_NUMBERS = b"0123456789.,eE+-"


class LineSplitter:
    """One stream of bytes; carriage returns end lines, too."""

    def __init__(self) -> None:
        self.has_cut = False
        """whether a line was longer than is read"""
        self._head = bytearray()
        self._tail = bytearray()
        self._is_long = False

    def feed(self, data: bytes) -> list[str]:
        """The lines that end in these bytes; with none, what was left without an end."""
        *ended, rest = data.replace(b"\r", b"\n").split(b"\n")
        lines = []
        for part in ended:
            self._add(part)
            lines.append(self._take())
        self._add(rest)
        if not data and self._head:
            lines.append(self._take())
        return lines

    def _add(self, part: bytes) -> None:
        room = _HALF - len(self._head)
        self._head += part[:room]
        self._tail += part[room:]
        if len(self._tail) > _HALF:
            del self._tail[:-_HALF]
            self._is_long = self.has_cut = True

    def _take(self) -> str:
        line = bytes(self._head + self._tail)
        if self._is_long:
            # A number that was cut would be another one.
            line = bytes(self._head.rstrip(_OF_NUMBERS) + " … ".encode() + self._tail.lstrip(_OF_NUMBERS))
        self._head, self._tail, self._is_long = bytearray(), bytearray(), False
        return line.decode("utf-8", "replace")
