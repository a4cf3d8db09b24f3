"""A checkpoint from somebody who means harm: sizes and checksums fit, and a payload lies in every file in turn. Nothing of it runs."""

from __future__ import annotations

import io
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from paceline.engine.build import build_trainer
from paceline.engine.checkpoint.reading import read_weights
from paceline.engine.checkpoint.start import choose_start
from paceline.engine.context import Context
from paceline.engine.trainer import Trainer
from paceline.errors import CheckpointError
from paceline.files import read_records
from paceline.telemetry.checkpoints import MANIFEST, STATE, check_files, read_checkpoint, shard_name, shards_digest
from paceline.telemetry.layout import RunLayout
from tests.engine.checkpoint.conftest import make_small
from tests.engine.checkpoint.forging import replace_file
from tests.engine.conftest import Regression


class Bomb:
    """Whoever unpickles it makes a file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self._mark}",)


def pickled(mark: Path) -> bytes:
    return pickle.dumps(Bomb(mark))


def pickled_text(mark: Path) -> bytes:
    return pickle.dumps(Bomb(mark), protocol=0)


def torch_zip(mark: Path) -> bytes:
    file = io.BytesIO()
    torch.save({"model.weight": Bomb(mark)}, file)
    return file.getvalue()


def torch_legacy(mark: Path) -> bytes:
    file = io.BytesIO()
    torch.save({"model.weight": Bomb(mark)}, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


KINDS = (pickled, pickled_text, torch_zip, torch_legacy)
pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def layout(train: Callable[..., Trainer], tmp_path: Path) -> RunLayout:
    train(4, every_steps=2)
    return RunLayout(tmp_path)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


def test_the_payload_itself_works(kind: Callable[[Path], bytes], mark: Path) -> None:
    """Or the other tests would say nothing."""
    if kind in (pickled, pickled_text):
        pickle.loads(kind(mark))
    else:
        torch.load(io.BytesIO(kind(mark)), weights_only=False)
    assert mark.exists()


@pytest.mark.parametrize("name", [MANIFEST, STATE, shard_name(0)])
def test_a_payload_in_a_file_is_named_and_passed_over(
    kind: Callable[[Path], bytes], name: str, mark: Path, layout: RunLayout, train: Callable[..., Trainer]
) -> None:
    newest = layout.checkpoints / "step_00000004"
    if name == MANIFEST:
        (newest / MANIFEST).write_bytes(kind(mark))
    else:
        replace_file(newest, name, kind(mark))
        check_files(read_checkpoint(newest))  # the manifest agrees with it
    if name != STATE:
        with pytest.raises(CheckpointError, match=name):
            read_weights(newest, shards_digest(read_checkpoint(newest)))
    trainer = train(6, every_steps=2)
    assert not mark.exists()
    (event,) = (event for event in read_records(layout.events) if event["kind"] == "resume")
    assert event["step"] == 2
    (named,) = event["passed_over"]
    assert named.startswith("step_00000004: the checkpoint is damaged: ")
    assert name in named
    assert trainer.state.step == 6
    assert (layout.checkpoints / "step_00000004.damaged").is_dir()
    assert read_checkpoint(newest).step == 4, "saved again"


def test_payloads_beside_the_files_mean_nothing(
    kind: Callable[[Path], bytes], mark: Path, layout: RunLayout, train: Callable[..., Trainer]
) -> None:
    newest = layout.checkpoints / "step_00000004"
    others = (
        "state.pkl",
        "model.pt",
        ".metadata",
        "shard-00001.safetensors",
        "shard-00000.safetensors.pkl",
        "__init__.py",
    )
    for name in others:
        (newest / name).write_bytes(kind(mark))
        (layout.checkpoints / name).write_bytes(kind(mark))
    read_weights(newest, shards_digest(read_checkpoint(newest)))
    trainer = train(6, every_steps=2)
    assert not mark.exists()
    assert trainer.state.step == 6
    (event,) = (event for event in read_records(layout.events) if event["kind"] == "resume")
    assert (event["step"], event["passed_over"]) == (4, [])


def test_a_payload_inside_a_proper_shard_means_nothing(
    kind: Callable[[Path], bytes], mark: Path, layout: RunLayout, make_context: Callable[..., Context]
) -> None:
    """As the bytes of a tensor that nobody asked for, and behind the last tensor."""
    newest = layout.checkpoints / "step_00000004"
    tensors = safetensors.torch.load_file(newest / shard_name(0))
    payload = torch.frombuffer(bytearray(kind(mark)), dtype=torch.uint8)
    text = {"format": "pt", "loader": kind(mark).decode("latin-1")}
    replace_file(newest, shard_name(0), safetensors.torch.save(tensors | {"model.payload": payload}, text))
    trainer = build_trainer(make_small(make_context, 6), Regression())
    assert trainer.state.step == 4
    trainer.close()
    replace_file(newest, shard_name(0), safetensors.torch.save(tensors) + kind(mark))
    assert choose_start(make_small(make_context, 6)).state.step == 2
    assert not mark.exists()


@pytest.mark.parametrize("name", [MANIFEST, STATE, shard_name(0)])
def test_a_fork_or_a_fresh_run_from_it_is_refused(
    kind: Callable[[Path], bytes], name: str, mark: Path, layout: RunLayout, make_context: Callable[..., Context]
) -> None:
    foreign = layout.root / "foreign" / "step_00000004"
    shutil.copytree(layout.checkpoints / "step_00000004", foreign)
    shutil.rmtree(layout.checkpoints)
    layout.events.unlink()
    if name == MANIFEST:
        (foreign / MANIFEST).write_bytes(kind(mark))
    else:
        replace_file(foreign, name, kind(mark))
    fork = make_small(make_context, 6)
    fork.run.parent = {"checkpoint": str(foreign), "step": 4}
    with pytest.raises(CheckpointError, match=name):
        build_trainer(fork, Regression())
    if name != STATE:
        fresh = make_small(make_context, 6)
        digest = "" if name == MANIFEST else shards_digest(read_checkpoint(foreign))
        fresh.run.init_from = {"path": str(foreign), "digest": digest}
        with pytest.raises(CheckpointError, match=name):
            build_trainer(fresh, Regression())
    assert not mark.exists()
