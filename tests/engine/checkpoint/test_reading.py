"""Tensors and state out of a checkpoint's files, and guarantee 5: cut or changed anywhere, it is passed over for the older one."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from paceline.engine.checkpoint.reading import check_content, read_state, read_tensors, read_weights
from paceline.engine.checkpoint.tensors import MODEL, OPTIMIZER, collect_tensors
from paceline.engine.state import TrainState
from paceline.errors import CheckpointError
from paceline.telemetry.checkpoints import (
    MANIFEST,
    SCHEMA,
    STATE,
    check_files,
    list_checkpoints,
    newest_whole,
    read_checkpoint,
    shard_name,
    shards_digest,
)
from paceline.telemetry.layout import RunLayout
from tests.engine.checkpoint.conftest import Parts, build_parts
from tests.engine.checkpoint.forging import replace_file

FILES = (MANIFEST, STATE, shard_name(0), shard_name(1))


@pytest.fixture
def parts() -> Parts:
    return build_parts(3)


@pytest.fixture
def saved(save_on_two_ranks: Callable[..., RunLayout], parts: Parts) -> RunLayout:
    """A run with an older checkpoint and a newer one, of two shards each."""
    layout = save_on_two_ranks(parts, 10, 20)
    assert sorted(path.name for path in (layout.checkpoints / "step_00000020").iterdir()) == sorted(FILES)
    return layout


def test_tensors_read_back_from_all_shards(saved: RunLayout, parts: Parts) -> None:
    checkpoint = read_checkpoint(saved.checkpoints / "step_00000020")
    check_content(checkpoint)
    assert set(checkpoint.manifest.tensors.values()) == {shard_name(0), shard_name(1)}
    expected = collect_tensors(parts.strategy, parts.optimizer, parts.precision)
    found = {MODEL + name: tensor for name, tensor in read_tensors(checkpoint, MODEL).items()}
    found |= {OPTIMIZER + name: tensor for name, tensor in read_tensors(checkpoint, OPTIMIZER).items()}
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor.detach()), name
    weights = read_weights(checkpoint.path, shards_digest(checkpoint))
    assert set(weights) == {name.removeprefix(MODEL) for name in expected if name.startswith(MODEL)}
    with pytest.raises(CheckpointError, match="other weights than this run began with"):
        read_weights(checkpoint.path, "0" * 64)


def test_what_was_read_does_not_change_with_the_file(saved: RunLayout) -> None:
    checkpoint = read_checkpoint(saved.checkpoints / "step_00000020")
    tensors = read_tensors(checkpoint, MODEL)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for name in (shard_name(0), shard_name(1)):
        size = (checkpoint.path / name).stat().st_size
        with open(checkpoint.path / name, "r+b") as file:
            file.write(b"\xff" * size)
    assert all(torch.equal(tensors[name], value) for name, value in before.items())


def assert_passed_over(layout: RunLayout, file: str, what: str) -> None:
    for check in (check_files, check_content):
        found, passed_over = newest_whole(list_checkpoints(layout.checkpoints), check)
        assert found is not None, what
        assert found.step == 10, what
        assert len(passed_over) == 1, what
        assert passed_over[0].startswith("step_00000020: the checkpoint is damaged: "), what
        assert file in passed_over[0], what


def test_cut_at_100_places_the_older_one_is_found(saved: RunLayout) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    newest = saved.checkpoints / "step_00000020"
    for cut in range(100):
        file = newest / FILES[cut % len(FILES)]
        whole = file.read_bytes()
        # The manifest ends with a line feed, which nobody misses.
        position = draw.randrange(len(whole) - (file.name == MANIFEST))
        file.write_bytes(whole[:position])
        assert_passed_over(saved, file.name, f"{file.name} cut at byte {position} of {len(whole)}")
        file.write_bytes(whole)
    found, passed_over = newest_whole(list_checkpoints(saved.checkpoints), check_content)
    assert found is not None
    assert (found.step, passed_over) == (20, []), "every cut was mended"


def test_one_byte_changed_at_100_places_the_older_one_is_found(saved: RunLayout) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    newest = saved.checkpoints / "step_00000020"
    changes = 0
    while changes < 100:
        file = newest / FILES[changes % len(FILES)]
        whole = file.read_bytes()
        position = draw.randrange(len(whole))
        broken = bytearray(whole)
        broken[position] ^= draw.randrange(1, 256)
        if file.name == MANIFEST and says_the_same(whole, bytes(broken)):
            continue
        file.write_bytes(broken)
        assert_passed_over(saved, file.name, f"{file.name}, byte {position}: {whole[position]} → {broken[position]}")
        file.write_bytes(whole)
        changes += 1


def says_the_same(whole: bytes, broken: bytes) -> bool:
    """White space for white space is no damage, and another digit as the version is a newer version, which is refused."""
    try:
        content = json.loads(broken)
    except ValueError:
        return False
    return content == json.loads(whole) or (type(content.get("v")) is int and content["v"] > SCHEMA)


@pytest.mark.parametrize("file", FILES)
def test_a_file_emptied_or_gone_or_exchanged(saved: RunLayout, file: str) -> None:
    newest, older = (saved.checkpoints / name for name in ("step_00000020", "step_00000010"))
    (newest / file).write_bytes((older / file).read_bytes())
    assert_passed_over(saved, MANIFEST if file == MANIFEST else file, "the older one's file")
    (newest / file).write_bytes(b"")
    assert_passed_over(saved, file, "emptied")
    (newest / file).unlink()
    assert_passed_over(saved, file, "gone")


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        None,
        {"step": 20},
        {"step": -1},
        {"step": 20.0},
        {"samples": "320"},
        {"horizon": True},
        {"best": "0.5"},
        {"best_step": -3},
        {"objective": 3},
        {"step": 21},
    ],
    ids=str,
)
def test_a_state_that_no_run_can_have_written(saved: RunLayout, content: object) -> None:
    """With the right checksums: whoever made them, it is not a state."""
    newest = saved.checkpoints / "step_00000020"
    if isinstance(content, dict) and content and content != {"step": 20}:
        content = dataclasses.asdict(TrainState(step=20)) | content
    replace_file(newest, STATE, json.dumps(content).encode())
    check_files(read_checkpoint(newest))
    with pytest.raises(CheckpointError, match=r"damaged: state\.json") as caught:
        read_state(read_checkpoint(newest))
    assert caught.value.problems[0].where == str(newest)
    found, passed_over = newest_whole(list_checkpoints(saved.checkpoints), check_content)
    assert found is not None
    assert (found.step, len(passed_over)) == (10, 1)


def test_a_state_reads_back(saved: RunLayout) -> None:
    newest = saved.checkpoints / "step_00000020"
    state = TrainState(20, 320, 40, "max hr", 0.1 + 0.2, 16, 1, 20)
    replace_file(newest, STATE, json.dumps(dataclasses.asdict(state)).encode())
    assert read_state(read_checkpoint(newest)) == state


def test_a_shard_without_a_tensor_that_the_manifest_promises(saved: RunLayout) -> None:
    newest = saved.checkpoints / "step_00000020"
    tensors = safetensors.torch.load_file(newest / shard_name(1))
    gone = sorted(tensors)[0]
    del tensors[gone]
    replace_file(newest, shard_name(1), safetensors.torch.save(tensors))
    checkpoint = read_checkpoint(newest)
    check_files(checkpoint)
    with pytest.raises(CheckpointError, match=f"shard-00001.safetensors does not hold {gone}"):
        check_content(checkpoint)
    with pytest.raises(CheckpointError, match=r"shard-00001\.safetensors cannot be read"):
        read_tensors(checkpoint, gone.partition(".")[0] + ".")


@pytest.mark.parametrize(
    "header",
    [b"", b"\xff" * 8, (1 << 40).to_bytes(8, "little"), b"\x02\0\0\0\0\0\0\0{}", b'\x08\0\0\0\0\0\0\0{"a":{}}'],
)
def test_a_shard_with_the_right_checksum_and_no_sense(saved: RunLayout, header: bytes) -> None:
    newest = saved.checkpoints / "step_00000020"
    replace_file(newest, shard_name(0), header)
    check_files(read_checkpoint(newest))
    assert_content_is_passed_over(saved.checkpoints)


def assert_content_is_passed_over(checkpoints: Path) -> None:
    found, passed_over = newest_whole(list_checkpoints(checkpoints), check_content)
    assert found is not None
    assert found.step == 10
    assert passed_over[0].startswith("step_00000020: the checkpoint is damaged: shard-00000.safetensors")
