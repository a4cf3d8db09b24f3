"""What the header of a WAV file declares, held against the bytes that are there: decoders trust it, or correct it in silence. No numpy."""

from __future__ import annotations

import struct

_CHUNK = struct.Struct("<4sI")


def check_wav_header(content: bytes) -> str | None:
    """How a RIFF/WAVE file's header lies, in words; None: it does not, or this is another kind of file."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        return None
    place, is_data_seen = 12, False
    while place < len(content):
        rest = content[place : place + _CHUNK.size]
        if len(rest) <= 1 and is_data_seen:
            return None  # some writers fill up to an even length once too often
        if len(rest) < _CHUNK.size:
            return _left_over(len(rest)) if is_data_seen else "its WAV header is cut off"
        name, declared = _CHUNK.unpack(rest)
        place += _CHUNK.size
        left = len(content) - place
        if name == b"data":
            if declared > left:
                return f"its WAV header declares {declared} bytes of samples, and {left} are there"
            is_data_seen = True
        elif is_data_seen and (declared > left or not _is_name(name)):
            return _left_over(left + _CHUNK.size)
        elif declared > left:
            return "its WAV header is cut off"
        place += declared + declared % 2
    return None if is_data_seen else "it has a WAV header and no samples"


def _left_over(num_bytes: int) -> str:
    return f"its WAV header declares fewer samples than there are: {num_bytes} bytes are left over"


def _is_name(name: bytes) -> bool:
    return all(32 <= byte < 127 for byte in name)
