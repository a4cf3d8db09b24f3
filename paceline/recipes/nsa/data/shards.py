"""A token shard: one file of documents as numbers, written once, whole or not there. No torch, no numpy; stream.py reads it for training.

    128 bytes    header: magic, version, bytes per token, vocabulary, tokens, documents, tokenizer, checksum of the rest, its own checksum
    tokens       uint16 or uint32, little-endian, document after document, each with its end-of-document token
    0 to 7       zeros, so that what follows is aligned
    offsets      uint64, documents + 1 of them: document i is tokens[offsets[i]:offsets[i + 1]]

with ShardWriter(Path("train-00000.tokens"), identity) as writer:
    writer.add(tokens)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import sys
import zlib
from array import array
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from paceline.errors import DataError
from paceline.recipes.nsa.data.tokenizer import Identity

MAGIC = b"PACETOK\n"
VERSION = 1
HEADER_BYTES = 128
_FIELDS = struct.Struct("<8sIIQQQ32s32s")
_CHECKSUM = struct.Struct("<I")
_ALIGNMENT = 8
_BLOCK_BYTES = 2**22
REMAKE = "type the same `paceline prepare` again: it makes what is damaged anew"


@dataclass(frozen=True)
class Header:
    """What the first bytes of a shard say."""

    token_bytes: int
    """2 or 4"""
    vocabulary: int
    tokens: int
    documents: int
    tokenizer: bytes
    """SHA-256 of the tokenizer's fingerprint"""
    payload: bytes
    """SHA-256 of everything after the header"""

    def pack(self) -> bytes:
        numbers = (self.token_bytes, self.vocabulary, self.tokens, self.documents, self.tokenizer, self.payload)
        fields = _FIELDS.pack(MAGIC, VERSION, *numbers)
        return (fields + _CHECKSUM.pack(zlib.crc32(fields))).ljust(HEADER_BYTES, b"\0")

    @property
    def offsets_at(self) -> int:
        """Where the offsets begin in the file."""
        end = HEADER_BYTES + self.tokens * self.token_bytes
        return end + -end % _ALIGNMENT

    @property
    def file_bytes(self) -> int:
        return self.offsets_at + (self.documents + 1) * 8


class ShardWriter:
    """Writes beside the file's place, and puts it there when everything is on the disk; an exception leaves nothing."""

    def __init__(self, path: Path, identity: Identity) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.part")
        self._identity = identity
        self._stream = open(self._part, "w+b")  # noqa: SIM115
        self._stream.write(bytes(HEADER_BYTES))
        self._digest = hashlib.sha256()
        self._offsets = array("Q", [0])
        self.header: Header | None = None
        """what was written, once it is there"""

    @property
    def tokens(self) -> int:
        return self._offsets[-1]

    @property
    def documents(self) -> int:
        return len(self._offsets) - 1

    def add(self, tokens: array[int]) -> None:
        """One document, with the token that ends it."""
        assert tokens.typecode == self._identity.typecode
        assert len(tokens)
        self._write(tokens)
        self._offsets.append(self.tokens + len(tokens))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            with contextlib.suppress(OSError):  # what was not written cannot be flushed either
                self._stream.close()
            self._part.unlink(missing_ok=True)

    def _finish(self) -> None:
        token_bytes = array(self._identity.typecode).itemsize
        self._write_bytes(bytes(-(HEADER_BYTES + self.tokens * token_bytes) % _ALIGNMENT))
        self._write(self._offsets)
        tokenizer = hashlib.sha256(self._identity.fingerprint.encode()).digest()
        header = Header(
            token_bytes, self._identity.vocabulary, self.tokens, self.documents, tokenizer, self._digest.digest()
        )
        self._stream.seek(0)
        self._stream.write(header.pack())
        self._stream.flush()
        os.fsync(self._stream.fileno())
        os.replace(self._part, self._path)
        sync_directory(self._path.parent)
        self.header = header

    def _write(self, numbers: array[int]) -> None:
        if sys.byteorder == "big":
            numbers = numbers[:]
            numbers.byteswap()
        self._write_bytes(numbers.tobytes())

    def _write_bytes(self, data: bytes) -> None:
        self._digest.update(data)
        self._stream.write(data)


def sync_directory(directory: Path) -> None:
    """So that a name is on the disk, too, before something that refers to it is."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_header(path: Path) -> Header:
    """The header of a shard that is as long as it says; DataError, with the file and the reason, for any other file."""
    try:
        with open(path, "rb") as stream:
            raw = stream.read(HEADER_BYTES)
            size = os.fstat(stream.fileno()).st_size
    except FileNotFoundError:
        raise DataError("a token shard is missing", str(path), REMAKE) from None
    except OSError as error:
        raise DataError(f"a token shard cannot be read ({error.strerror})", str(path), "check the disk") from error
    if not raw.startswith(MAGIC):
        what = (
            "this file is empty"
            if not raw
            else f"this is no token shard: it begins with {raw[:8]!r}, not with {MAGIC!r}"
        )
        raise DataError(what, str(path), REMAKE)
    if len(raw) < HEADER_BYTES:
        what = f"this token shard is truncated: {size} bytes, and its header alone has {HEADER_BYTES}"
        raise DataError(what, str(path), REMAKE)
    _, version, *numbers = _FIELDS.unpack_from(raw)
    if version != VERSION:
        what = f"this token shard has version {version}, and this Paceline reads {VERSION}"
        raise DataError(what, str(path), "prepare the text again, into another --out DIR")
    (checksum,) = _CHECKSUM.unpack_from(raw, _FIELDS.size)
    header = Header(*numbers)
    if checksum != zlib.crc32(raw[: _FIELDS.size]) or header.token_bytes not in (2, 4):
        raise DataError("the header of this token shard is damaged", str(path), REMAKE)
    if size != header.file_bytes:
        kind = "truncated" if size < header.file_bytes else "longer than it should be"
        what = f"this token shard is {kind}: {size:,} bytes, and its header says {header.file_bytes:,}"
        raise DataError(what, str(path), REMAKE)
    return header


def check_tokenizer(header: Header, identity: Identity, path: Path) -> None:
    """DataError for a shard of another tokenizer than the one that its manifest names."""
    if header.tokenizer != hashlib.sha256(identity.fingerprint.encode()).digest():
        what = f"this token shard was made by another tokenizer than {identity.fingerprint} (vocabulary {header.vocabulary:,})"
        raise DataError(what, str(path), REMAKE)


def check_payload(path: Path, header: Header) -> None:
    """Reads all of it; DataError where it is not as it was written."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            stream.seek(HEADER_BYTES)
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise DataError(f"a token shard cannot be read ({error.strerror})", str(path), "check the disk") from error
    if digest.digest() != header.payload:
        raise DataError("this token shard is damaged: its checksum is not that of its header", str(path), REMAKE)
