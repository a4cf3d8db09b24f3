from __future__ import annotations

import errno
import os
from array import array
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import DataError
from paceline.recipes.nsa.data.shards import HEADER_BYTES, ShardWriter, check_payload, check_tokenizer, read_header
from paceline.recipes.nsa.data.tokenizer import ByteTokenizer, Identity

BYTES = ByteTokenizer.identity
WIDE = Identity("tokenizers", "tokenizers:wide", vocabulary=100_000, end=99_999, padding=99_999)


def write(path: Path, *documents: list[int], identity: Identity = BYTES) -> Path:
    with ShardWriter(path, identity) as writer:
        for document in documents:
            writer.add(array(identity.typecode, document))
    return path


@pytest.mark.parametrize("identity", [BYTES, WIDE], ids=["uint16", "uint32"])
def test_what_is_written_reads_back(tmp_path: Path, identity: Identity) -> None:
    top = identity.vocabulary - 1
    path = write(tmp_path / "a.tokens", [1, 2, top], [3, top], [4, 5, 6, 7, top], identity=identity)
    header = read_header(path)
    check_tokenizer(header, identity, path)
    check_payload(path, header)
    assert (header.tokens, header.documents, header.vocabulary) == (10, 3, identity.vocabulary)
    kind = "<u2" if identity is BYTES else "<u4"
    tokens = np.memmap(path, kind, "r", HEADER_BYTES, (10,))
    offsets = np.memmap(path, "<u8", "r", header.offsets_at, (4,))
    assert tokens.tolist() == [1, 2, top, 3, top, 4, 5, 6, 7, top]
    assert offsets.tolist() == [0, 3, 5, 10]
    assert [file.name for file in tmp_path.iterdir()] == ["a.tokens"]


def test_the_same_documents_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", [1, 2], [3, 4]), write(tmp_path / "b", [1, 2], [3, 4])
    assert first.read_bytes() == second.read_bytes()
    assert write(tmp_path / "c", [1, 2, 3, 4]).read_bytes() != first.read_bytes()


@pytest.mark.parametrize("keep", [0, 7, 64, 127, 128, 150, -1])
def test_a_truncated_shard_is_refused_by_name(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path / "a.tokens", [*range(50)])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"truncated|empty|no token shard") as caught:
        read_header(path)
    assert "a.tokens" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PAR1" + bytes(400), "no token shard"),
        (b"\x93NUMPY" + bytes(400), "begins with"),
        (bytes(400), "no token shard"),
    ],
)
def test_a_foreign_file_is_refused_by_name(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a.tokens").write_bytes(content)
    with pytest.raises(DataError, match=says):
        read_header(tmp_path / "a.tokens")


def test_a_missing_one_a_longer_one_and_another_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="missing"):
        read_header(tmp_path / "a.tokens")
    content = write(tmp_path / "a.tokens", [1, 2]).read_bytes()
    (tmp_path / "a.tokens").write_bytes(content + b"x")
    with pytest.raises(DataError, match="longer"):
        read_header(tmp_path / "a.tokens")
    (tmp_path / "a.tokens").write_bytes(content[:8] + b"\x02" + content[9:])
    with pytest.raises(DataError, match="version 2"):
        read_header(tmp_path / "a.tokens")


@pytest.mark.parametrize("at", [12, 24, 40, 60, 100])
def test_a_changed_byte_of_the_header_is_noticed(tmp_path: Path, at: int) -> None:
    path = write(tmp_path / "a.tokens", [*range(50)])
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="header of this token shard is damaged"):
        read_header(path)


@pytest.mark.parametrize("at", [HEADER_BYTES, HEADER_BYTES + 51, -1])
def test_a_changed_byte_behind_it_is_noticed_by_reading_all(tmp_path: Path, at: int) -> None:
    path = write(tmp_path / "a.tokens", [*range(50)])
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="checksum"):
        check_payload(path, read_header(path))


def test_a_shard_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tokens", [1, 2])
    with pytest.raises(DataError, match="another tokenizer than tokenizers:wide"):
        check_tokenizer(read_header(path), WIDE, path)


def test_a_shard_is_replaced_never_written_over(tmp_path: Path) -> None:
    """Whoever has the old one mapped keeps it."""
    path = write(tmp_path / "a.tokens", [1, 2])
    os.link(path, tmp_path / "old")
    before = path.read_bytes()
    write(path, [3, 4])
    assert (tmp_path / "old").read_bytes() == before != path.read_bytes()


def test_an_error_leaves_nothing_and_an_old_file_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tokens", [1, 2])
    before = path.read_bytes()

    def fill_up() -> None:
        with ShardWriter(path, BYTES) as writer:
            writer.add(array("H", [3, 4]))
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        fill_up()
    assert [file.name for file in tmp_path.iterdir()] == ["a.tokens"]
    assert path.read_bytes() == before
