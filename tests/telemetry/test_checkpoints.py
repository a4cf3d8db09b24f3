"""A checkpoint's files: what is whole is found, whatever is not is named, and nothing else is ever raised."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import zlib
from pathlib import Path

import pytest

from paceline.errors import CheckpointError, UsageError
from paceline.telemetry.checkpoints import (
    MANIFEST,
    SCHEMA,
    STATE,
    Checkpoint,
    FileEntry,
    Manifest,
    _digest,
    check_files,
    find_checkpoint,
    list_checkpoints,
    newest_whole,
    read_checkpoint,
    shard_name,
    step_name,
    write_manifest,
)

IDENTITY = {"fingerprint": "ab" * 32, "values": {"run.seed": 0, "train.optimizer.lr": 1e-3}}


def write_checkpoint(directory: Path, step: int, **fields) -> Checkpoint:
    """A checkpoint of three small files; the bytes are of no kind."""
    path = directory / step_name(step)
    path.mkdir(parents=True)
    contents = {STATE: b'{"step": 1}', shard_name(0): bytes(range(200)), shard_name(1): b"\x00" * 77}
    for name, content in contents.items():
        (path / name).write_bytes(content)
    files = {name: FileEntry(len(content), zlib.crc32(content)) for name, content in contents.items()}
    tensors = {"model.a": shard_name(0), "model.b": shard_name(1)}
    values = {"step": step, "run": "0123456789ab", "attempt": 1, "world_size": 2, "paceline": "0", "identity": IDENTITY}
    write_manifest(path, Manifest(**(values | {"files": files, "tensors": tensors} | fields)))
    return read_checkpoint(path)


@pytest.fixture
def saved(tmp_path: Path) -> Checkpoint:
    return write_checkpoint(tmp_path / "checkpoints", 20)


def rewrite(saved: Checkpoint, **changes) -> None:
    """The same manifest with other values and the right checksum: what is wrong with it is only what was changed."""
    content = json.loads((saved.path / MANIFEST).read_text()) | changes
    del content["crc32"]
    (saved.path / MANIFEST).write_text(json.dumps(content | {"crc32": _digest(content)}))


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    saved = write_checkpoint(tmp_path, 12, time=1794712345.4776237)
    manifest = saved.manifest
    assert (manifest.step, manifest.world_size, manifest.time, manifest.v) == (12, 2, 1794712345.4776237, SCHEMA)
    assert manifest.identity == IDENTITY
    assert manifest.num_bytes == 11 + 200 + 77
    assert manifest.files[shard_name(1)] == FileEntry(77, zlib.crc32(b"\x00" * 77))
    write_manifest(saved.path, manifest)
    assert read_checkpoint(saved.path) == saved
    check_files(saved)
    names = sorted(os.listdir(saved.path))
    assert names == [MANIFEST, shard_name(0), shard_name(1), STATE], "nothing is left beside the files"


def test_what_a_newer_version_adds_is_passed_over(saved: Checkpoint) -> None:
    rewrite(saved, mood="good")
    assert read_checkpoint(saved.path) == saved


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"v": 1, "st',
        b"weights",
        b"\x80\x04\x95pickle\xff",
        b"[]",
        b"null",
        b"3",
        b'"v"',
        b"{}",
        b'{"v": 1}',
        b'{"v": "1"}',
        b"[" * 100_000,
        b'{"files":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"v": ' + b"9" * 10_000 + b"}",
        b"{\x00}",
        b"\xef\xbb\xbf{}",
    ],
    ids=lambda content: content[:12].decode("ascii", "replace"),
)
def test_what_is_no_manifest(saved: Checkpoint, content: bytes) -> None:
    (saved.path / MANIFEST).write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged") as caught:
        read_checkpoint(saved.path)
    assert caught.value.problems[0].where == str(saved.path)
    assert "manifest.json" in caught.value.problems[0].what
    assert newest_whole([saved.path]) == (None, [f"{saved.path.name}: {caught.value.problems[0].what}"])


ENTRY = {"bytes": 1, "crc32": 1}
OTHER_NAMES = (
    "../../x",
    "/etc/passwd",
    "shard-00000.pkl",
    "data.pkl",
    "..",
    "",
    "state.json\n",
    "shard-00000.safetensors/..",
)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1},
        {"step": "3"},
        {"step": True},
        {"step": 3.0},
        {"step": None},
        {"attempt": -1},
        {"world_size": [1]},
        {"time": "noon"},
        {"time": 10**400},
        {"time": {}},
        {"identity": None},
        {"identity": {"fingerprint": "x"}},
        {"identity": {"values": [1]}},
        {"files": []},
        {"files": {}},
        {"files": {STATE: None}},
        {"files": {STATE: 3}},
        {"files": {STATE: {"bytes": -1, "crc32": 0}}},
        {"files": {STATE: {"bytes": 1.5, "crc32": 0}}},
        {"files": {STATE: {"bytes": 1}}},
        {"tensors": []},
        {"tensors": "model.a"},
        {"tensors": {"model.a": "shard-00009.safetensors"}},
        {"tensors": {"model.a": "../../x"}},
        {"tensors": {"model.a": None}},
        {"v": -1},
        {"v": "1"},
        *({"files": {STATE: ENTRY, name: ENTRY}, "tensors": {}} for name in OTHER_NAMES),
    ],
    ids=lambda changes: str(changes)[:50],
)
def test_a_manifest_with_values_that_cannot_be(saved: Checkpoint, changes: dict) -> None:
    rewrite(saved, **changes)
    with pytest.raises(CheckpointError, match=r"damaged: manifest\.json is not a manifest") as caught:
        read_checkpoint(saved.path)
    assert caught.value.problems[0].where == str(saved.path)
    assert caught.value.problems[0].do
    assert newest_whole([saved.path])[0] is None


def test_a_value_changed_without_its_checksum_is_noticed(saved: Checkpoint) -> None:
    """Every value is possible in itself: without the manifest's own checksum nobody would see it."""
    text = (saved.path / MANIFEST).read_text()
    for old, new in (
        ('"attempt": 1', '"attempt": 7'),
        ("model.b", "nodel.b"),
        ("ababab", "abacab"),
        ("0.001", "0.002"),
    ):
        assert old in text
        (saved.path / MANIFEST).write_text(text.replace(old, new, 1))
        with pytest.raises(CheckpointError, match="does not have its checksum"):
            read_checkpoint(saved.path)


def test_one_from_a_newer_version_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    old = write_checkpoint(tmp_path, 10)
    new = write_checkpoint(tmp_path, 20)
    write_manifest(new.path, dataclasses.replace(new.manifest, v=SCHEMA + 1))
    for call in (lambda: read_checkpoint(new.path), lambda: newest_whole([new.path, old.path])):
        with pytest.raises(UsageError, match="written by a newer Paceline") as caught:
            call()
        assert not isinstance(caught.value, CheckpointError)
        assert caught.value.problems[0].do == "install the newer version"
        assert caught.value.problems[0].where == str(new.path)


def test_every_kind_of_damage_to_a_file_is_named(saved: Checkpoint) -> None:
    for name in saved.manifest.files:
        file = saved.path / name
        whole = file.read_bytes()
        for content, says in (
            (whole[:-1], f"{name} has {len(whole) - 1} bytes instead of {len(whole)}"),
            (whole + b"x", f"{name} has {len(whole) + 1} bytes instead of {len(whole)}"),
            (b"", f"{name} has 0 bytes instead of {len(whole)}"),
            (bytes([whole[0] ^ 1]) + whole[1:], f"{name} does not have its checksum"),
            (whole[:-1] + bytes([whole[-1] ^ 0x80]), f"{name} does not have its checksum"),
        ):
            file.write_bytes(content)
            with pytest.raises(CheckpointError) as caught:
                check_files(saved)
            assert caught.value.problems[0].what == f"the checkpoint is damaged: {says}"
        file.unlink()
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            check_files(saved)
        file.mkdir()
        with pytest.raises(CheckpointError, match=name):
            check_files(saved)
        file.rmdir()
        file.symlink_to("nowhere")
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            check_files(saved)
        file.unlink()
        file.write_bytes(whole)
        check_files(saved)


def test_only_checkpoints_are_listed_the_newest_first(tmp_path: Path) -> None:
    for step in (9, 100_000_000, 20):
        write_checkpoint(tmp_path, step)
    (tmp_path / "latest").symlink_to(step_name(20))
    (tmp_path / "step_00000030").symlink_to(step_name(20))
    (tmp_path / "step_00000031").write_text("a file")
    others = (
        "step_00000020.damaged",
        "step_00000020.damaged-2",
        ".saving-step_00000040-1-1",
        ".removing-step_00000009",
    )
    for name in (*others, "step_1", "step_00000x20", "xstep_00000050", "step_-0000001"):
        shutil.copytree(tmp_path / step_name(20), tmp_path / name)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_100000000", "step_00000020", "step_00000009"]
    assert list_checkpoints(tmp_path / "nowhere") == []
    assert list_checkpoints(tmp_path / "step_00000031") == []


def test_the_newest_whole_one_is_found_and_the_others_are_named(tmp_path: Path) -> None:
    made = [write_checkpoint(tmp_path, step) for step in (10, 20, 30, 40)]
    (made[3].path / MANIFEST).unlink()
    (made[2].path / shard_name(1)).unlink()
    found, passed_over = newest_whole(list_checkpoints(tmp_path))
    assert found == made[1]
    assert passed_over == [
        "step_00000040: the checkpoint is damaged: manifest.json is missing",
        "step_00000030: the checkpoint is damaged: shard-00001.safetensors is missing",
    ]
    assert newest_whole([]) == (None, [])


def test_one_under_the_name_of_another_step_is_passed_over(tmp_path: Path) -> None:
    """A run that went on from it would save its step again, where there is no place for it."""
    old = write_checkpoint(tmp_path, 10)
    shutil.copytree(old.path, tmp_path / step_name(30))
    found, passed_over = newest_whole(list_checkpoints(tmp_path))
    assert found == old
    assert passed_over == ["step_00000030: the checkpoint is damaged: manifest.json is of step 10"]


def test_a_further_check_decides_too(tmp_path: Path) -> None:
    made = [write_checkpoint(tmp_path, step) for step in (10, 20)]

    def check(checkpoint: Checkpoint) -> None:
        if checkpoint.step == 20:
            raise CheckpointError("not this one")

    assert newest_whole(list_checkpoints(tmp_path), check) == (made[0], ["step_00000020: not this one"])


def test_a_checkpoint_by_word_and_by_path(tmp_path: Path) -> None:
    made = {step: write_checkpoint(tmp_path / "checkpoints", step) for step in (10, 20, 30)}
    for word, step in (("latest", 10), ("best", 20)):
        (tmp_path / "checkpoints" / word).symlink_to(step_name(step))
    assert find_checkpoint(tmp_path).step == 30, "the newest, whatever the link says"
    assert find_checkpoint(tmp_path, "best") == made[20]
    assert find_checkpoint(made[10].path) == made[10]
    assert find_checkpoint(tmp_path / "checkpoints" / "best").step == 20
    shutil.copytree(made[10].path, tmp_path / "kept")
    assert find_checkpoint(tmp_path / "kept").step == 10, "a copy under any name"
    with pytest.raises(UsageError, match="no 'final' checkpoint") as caught:
        find_checkpoint(tmp_path, "final")
    assert "step_00000030, step_00000020, step_00000010" in caught.value.problems[0].do
    (made[30].path / STATE).unlink()
    assert find_checkpoint(tmp_path).step == 20


def test_where_no_checkpoint_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no checkpoint here"):
        find_checkpoint(tmp_path)
    with pytest.raises(UsageError, match="no such directory"):
        find_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
        find_checkpoint(tmp_path / "checkpoints" / step_name(3))
    for step in (10, 20):
        (write_checkpoint(tmp_path / "checkpoints", step).path / STATE).unlink()
    with pytest.raises(CheckpointError, match="no checkpoint of this run is whole") as caught:
        find_checkpoint(tmp_path)
    assert "step_00000020" in caught.value.problems[0].where
    assert "step_00000010" in caught.value.problems[0].where


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", [MANIFEST, shard_name(0), ".", ".."])
def test_what_may_not_be_read_is_for_the_operator_to_mend(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path / "checkpoints", 10)
    saved = write_checkpoint(tmp_path / "checkpoints", 20)
    with forbidden(saved.path / name):
        for call in (
            lambda: find_checkpoint(tmp_path),
            lambda: newest_whole(list_checkpoints(tmp_path / "checkpoints")),
        ):
            with pytest.raises(UsageError, match="Permission denied") as caught:
                call()
            assert not isinstance(caught.value, CheckpointError), "it is not damaged, and must not be passed over"
            assert "permissions" in caught.value.problems[0].do


def test_what_the_system_forbids_is_not_called_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for every account: the refusal comes from a stand-in."""
    saved = write_checkpoint(tmp_path / "checkpoints", 20)

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    for target in ("os.scandir", "pathlib.Path.exists", "pathlib.Path.read_text", "pathlib.Path.stat"):
        with monkeypatch.context() as patch:
            patch.setattr(target, refuse)
            with pytest.raises(UsageError, match="Permission denied") as caught:
                find_checkpoint(tmp_path)
        assert not isinstance(caught.value, CheckpointError), target
    assert find_checkpoint(tmp_path) == saved


@contextlib.contextmanager
def forbidden(path: Path):
    path = path.resolve()
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(mode)
