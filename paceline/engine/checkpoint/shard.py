"""One file of a checkpoint in the safetensors format, written piece by piece from a snapshot with its checksum.

The library writes a file only from tensors that all lie in memory as a copy of their own; the format is a length, a JSON header and
the bytes one after another. It is read back with the library.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from paceline.engine.checkpoint.tensors import is_volatile
from paceline.telemetry.checkpoints import SPARE_BYTES, FileEntry

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_LEAST_BYTES = 16 << 20
"""A shard smaller than this is not worth a file of its own."""


def plan_shards(
    tensors: Mapping[str, torch.Tensor], world_size: int, writers: Mapping[str, int] | None = None
) -> list[list[str]]:
    """The names of each shard's tensors, in the order of its bytes: at most one shard per rank, of about the same size.

    What is not identical on all ranks (a buffer) is rank 0's, as in DDP; what one rank alone can write is in its shard (`writers`), and
    the rest is rank 0's then. In a shard the widest types come first, so that every tensor begins at a multiple of its element.
    """
    names = sorted(tensors, key=lambda name: not is_volatile(name, tensors[name]))
    total = sum(tensor.nbytes for tensor in tensors.values())
    count = 1 + max(writers.values()) if writers else max(1, min(world_size, total // _LEAST_BYTES))
    shards: list[list[str]] = [[] for _ in range(count)]
    position = 0
    for name in names:
        index = 0 if writers or is_volatile(name, tensors[name]) else min(count - 1, position * count // max(1, total))
        shards[writers.get(name, index) if writers else index].append(name)
        position += tensors[name].nbytes
    return [sorted(shard, key=lambda name: -tensors[name].element_size()) for shard in shards if shard]


def encode_header(names: Iterable[str], tensors: Mapping[str, torch.Tensor]) -> bytes:
    """What a safetensors file begins with."""
    entries, position = {}, 0
    for name in names:
        tensor = tensors[name]
        end = position + tensor.nbytes
        entries[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def check_room(directory: str | Path, num_bytes: int) -> None:
    """Raises ENOSPC before anything is written if the disk cannot take so much."""
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    if free < num_bytes + SPARE_BYTES:
        spare = f"{num_bytes / 2**20:,.1f} MiB to write and {SPARE_BYTES >> 20} to spare, {free / 2**20:,.1f} free"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {spare}", str(directory))


def write_file(path: str | Path, pieces: Iterable[bytes | memoryview]) -> FileEntry:
    """Writes a file and waits until it is on the disk; a part of it is taken away again when that fails."""
    crc = size = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        for piece in pieces:
            crc, size = zlib.crc32(piece, crc), size + len(piece)
            rest = memoryview(piece)
            while len(rest):
                rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)
    return FileEntry(size, crc)
