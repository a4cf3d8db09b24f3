"""A disk that fills up in the middle of a shard, on some ranks and while certain steps are saved; planted into a rank before it starts."""

from __future__ import annotations

import errno
import os
import threading

_ROOM_BYTES = 100
"""What still fits of a shard."""


def plant(first: float, last: float, guilty: float = -1) -> None:
    """For the saves of the steps `first` to `last`, on the rank `guilty` (-1: on all); every rank writes a shard."""
    from paceline.engine.checkpoint import shard, writer

    shard._LEAST_BYTES = 1
    if guilty not in (-1, int(os.environ.get("RANK", "0"))):
        return
    write, write_file = os.write, writer.write_file
    room = threading.local()

    def write_limited(descriptor: int, data) -> int:
        left = getattr(room, "left", None)
        if left is None:
            return write(descriptor, data)
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[:left])
        room.left = left - written
        return written

    def write_shard(path: str, pieces):
        # .saving-step_00000008-1-2/shard-00000.safetensors
        _, directory, name = path.rsplit("/", 2)
        step = int(directory.split("_")[1].split("-")[0])
        room.left = _ROOM_BYTES if name.startswith("shard-") and first <= step <= last else None
        try:
            return write_file(path, pieces)
        finally:
            room.left = None

    os.write, writer.write_file = write_limited, write_shard
