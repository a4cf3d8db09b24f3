"""Shard files: the safetensors library reads back what we write, for every type and shape; shards share the bytes fairly."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path

import pytest
import safetensors.torch
import torch

from paceline.engine.checkpoint import shard, snapshot
from paceline.engine.checkpoint.shard import check_room, encode_header, plan_shards, write_file
from paceline.engine.checkpoint.snapshot import Snapshot

SHAPES = ((), (0,), (1,), (3, 0, 2), (7,), (5, 3), (2, 3, 5, 1))


def values(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, shape, generator=generator).to(dtype)


def write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """As a rank does: planned, copied, written."""
    (names,) = plan_shards(tensors, 1)
    copy = Snapshot(torch.device("cpu"))
    copy.take([tensors[name] for name in names], [False] * len(names))
    entry = write_file(path, [encode_header(names, tensors), *copy.read()])
    content = path.read_bytes()
    assert (entry.bytes, entry.crc32) == (len(content), zlib.crc32(content))


def assert_reads_back(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    found = safetensors.torch.load_file(path)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("slab", [64, 1 << 26])
def test_every_type_and_shape_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slab: int) -> None:
    monkeypatch.setattr(snapshot, "_SLAB", slab)
    tensors = {
        f"model.{dtype}.{shape}": values(dtype, shape, index)
        for dtype in shard._TYPES
        for index, shape in enumerate(SHAPES)
    }
    tensors["model.transposed"] = values(torch.float32, (9, 4)).T
    tensors["model.strided"] = values(torch.float16, (40,))[::3]
    tensors["model.repeated"] = values(torch.float64, (1, 5)).expand(6, 5)
    tensors['model.größe "x"'] = values(torch.bfloat16, (3,))
    write(tmp_path / "a.safetensors", tensors)
    assert_reads_back(tmp_path / "a.safetensors", tensors)


def test_special_numbers_keep_their_bits(tmp_path: Path) -> None:
    bits = torch.tensor([0x7FC00001, 0x7F800001, -0x800000, -0x80000000, 1], dtype=torch.int32)
    write(tmp_path / "a.safetensors", {"model.x": bits.view(torch.float32)})
    assert torch.equal(safetensors.torch.load_file(tmp_path / "a.safetensors")["model.x"].view(torch.int32), bits)


def test_every_tensor_begins_at_a_multiple_of_its_element() -> None:
    kinds = [torch.bool, torch.float64, torch.int16, torch.float32, torch.uint8, torch.int64, torch.bfloat16]
    tensors = {f"model.{i}": values(kinds[i % len(kinds)], (1 + i % 5,)) for i in range(60)}
    (names,) = plan_shards(tensors, 1)
    header = encode_header(names, tensors)
    assert len(header) % 8 == 0
    position = len(header)
    for name in names:
        assert position % tensors[name].element_size() == 0, name
        position += tensors[name].nbytes


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 64])
def test_shards_hold_everything_once_and_about_the_same(monkeypatch: pytest.MonkeyPatch, world_size: int) -> None:
    monkeypatch.setattr(shard, "_LEAST_BYTES", 1)
    kinds = list(shard._TYPES)
    tensors = {f"optimizer.step.{i}": values(kinds[i % len(kinds)], (1 + (i * 37) % 101,)) for i in range(90)}
    tensors["model.running_mean"] = values(torch.float32, (3,))
    shards = plan_shards(tensors, world_size)
    assert sorted(name for names in shards for name in names) == sorted(tensors)
    assert 1 <= len(shards) <= world_size
    assert all(shards), "no empty shard"
    total, largest = (f(tensor.nbytes for tensor in tensors.values()) for f in (sum, max))
    assert max(sum(tensors[name].nbytes for name in names) for names in shards) <= total / world_size + largest
    assert shards == plan_shards(tensors, world_size), "every rank plans the same"
    assert "model.running_mean" in shards[0], "a buffer is rank 0's, as in DDP"


def test_a_small_state_is_one_shard_whatever_the_ranks() -> None:
    tensors = {"model.a": torch.zeros(1000), "model.b": torch.zeros(1000)}
    assert plan_shards(tensors, 8) == [["model.a", "model.b"]]
    assert plan_shards({"model.a": torch.zeros(0)}, 8) == [["model.a"]]


def test_a_disk_without_room_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    check_room(tmp_path, 0)
    disk = os.statvfs(tmp_path)
    with pytest.raises(OSError, match="No space left") as caught:
        check_room(tmp_path, disk.f_bavail * disk.f_frsize * 2)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_file_that_could_not_be_written_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    real_write, written = os.write, []

    def write_some(descriptor: int, data: bytes) -> int:
        if len(written) == 3 and failing == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(real_write(descriptor, data[:10]))
        return written[-1]

    def sync(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "write", write_some)
    if failing == "fsync":
        monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(OSError, match=r"No space|Input/output"):
        write_file(tmp_path / "a", [b"x" * 25, memoryview(b"y" * 25)])
    assert written[:3] == [10, 10, 5]
    assert list(tmp_path.iterdir()) == []


def test_short_writes_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, data[:7]))
    entry = write_file(tmp_path / "a", [b"0123456789" * 3, b"", memoryview(b"abc")])
    content = (tmp_path / "a").read_bytes()
    assert content == b"0123456789" * 3 + b"abc"
    assert (entry.bytes, entry.crc32) == (33, zlib.crc32(content))


def test_what_one_rank_alone_has_is_in_its_shard() -> None:
    tensors = {
        "model.a": torch.nn.Parameter(torch.zeros(4)),
        "model.b": torch.nn.Parameter(torch.zeros(4)),
        "model.buffer": torch.zeros(2),
        "optimizer.exp_avg.a": torch.zeros(4),
        "optimizer.exp_avg.b": torch.empty(4, device="meta"),
        "precision.loss_scale": torch.zeros((), dtype=torch.float64),
    }
    writers = {"model.a": 0, "optimizer.exp_avg.a": 0, "model.b": 1, "optimizer.exp_avg.b": 1}
    first, second = plan_shards(tensors, 3, writers)
    assert first[0] == "precision.loss_scale", "the widest type first"
    assert set(first[1:]) == {"model.a", "optimizer.exp_avg.a", "model.buffer"}
    assert second == ["model.b", "optimizer.exp_avg.b"]
