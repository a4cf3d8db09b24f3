"""Where a run begins: at the newest whole checkpoint, past damaged ones, never at another configuration's."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import paceline
from paceline.engine.build import build_trainer
from paceline.engine.checkpoint.reading import read_tensors
from paceline.engine.checkpoint.start import choose_start
from paceline.engine.checkpoint.tensors import MODEL
from paceline.engine.context import Context
from paceline.engine.trainer import Trainer
from paceline.errors import CheckpointError, UsageError
from paceline.files import read_records
from paceline.telemetry.checkpoints import (
    MANIFEST,
    SCHEMA,
    STATE,
    find_checkpoint,
    read_checkpoint,
    shard_name,
    shards_digest,
    write_manifest,
)
from paceline.telemetry.layout import RunLayout
from tests.engine.checkpoint.conftest import make_small, names_below
from tests.engine.conftest import Regression


@pytest.fixture
def layout(train: Callable[..., Trainer], tmp_path: Path) -> RunLayout:
    """A run that was saved at steps 2, 4 and 6."""
    train(6, every_steps=2, keep=9)
    return RunLayout(tmp_path)


def resumes(layout: RunLayout) -> list[dict]:
    return [event for event in read_records(layout.events) if event["kind"] == "resume"]


def content_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not any(part.is_symlink() for part in (path, *path.parents))
    }


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def final_weights(layout: RunLayout) -> dict[str, torch.Tensor]:
    return read_tensors(find_checkpoint(layout.root, "final"), MODEL)


def test_a_run_goes_on_at_its_newest_checkpoint(train: Callable[..., Trainer], layout: RunLayout) -> None:
    through = train(10, every_steps=2, keep=9)
    expected = final_weights(layout)
    (event,) = resumes(layout)
    assert (event["step"], event["checkpoint"]) == (6, str(layout.checkpoints / "step_00000006"))
    assert (event["passed_over"], event["world_size"], event["saved_world_size"]) == ([], 1, 1)
    shutil.rmtree(layout.checkpoints)
    with pytest.raises(CheckpointError, match=r"has saved checkpoints, the newest at step 10, and none is there"):
        train(10)  # a disk that is not mounted must not look like a run that begins
    layout.events.unlink()
    anew = train(10)
    assert anew.state.samples == through.state.samples
    found = final_weights(layout)
    assert [name for name, value in expected.items() if not torch.equal(found[name], value)] == []


OLD = {"python": "3.11.4", "torch": "2.12.1", "paceline": paceline.__version__, "paceline.engine": "4be1c0d21a07"}


@pytest.mark.parametrize(
    ("saved", "now", "changed"),
    [
        (OLD, OLD, None),
        (OLD, OLD | {"torch": "2.13.0"}, ["torch: 2.12.1 → 2.13.0"]),
        (OLD, OLD | {"paceline.engine": "9f3a01bb2c44"}, ["paceline.engine: 4be1c0d21a07 → 9f3a01bb2c44"]),
        ({}, OLD, None),
        ({}, OLD | {"paceline": "9.9"}, [f"paceline: {paceline.__version__} → 9.9"]),
        (OLD, {}, None),
    ],
    ids=["the same", "a version", "code", "an older checkpoint", "an older checkpoint and another version", "unknown"],
)
def test_other_software_than_wrote_the_checkpoint_is_named(
    make_context: Callable[..., Context], saved: dict, now: dict, changed: list[str] | None
) -> None:
    for software, max_steps in ((saved, 2), (now, 4)):
        context = make_small(make_context, max_steps, every_steps=2)
        context.run.attempts[0].software = software
        trainer = build_trainer(context, Regression())
        trainer.run()
        trainer.close()
    assert trainer.state.step == 4, "it goes on"
    assert read_checkpoint(context.layout.checkpoints / "step_00000004").manifest.software == now
    notes = [event for event in read_records(context.layout.events) if "software" in event.get("what", "")]
    if changed is None:
        assert notes == []
    else:
        (note,) = notes
        assert (note["kind"], note["changed"]) == ("note", changed)
        assert note["what"] == "software changed since step 2 was saved"
        assert "bit for bit" in note["why"]


def test_a_damaged_one_is_named_set_aside_and_its_step_saved_again(
    train: Callable[..., Trainer], layout: RunLayout
) -> None:
    newest = layout.checkpoints / "step_00000006"
    cut(newest / shard_name(0))
    damaged = content_of(newest)
    train(8, every_steps=2, keep=9)
    (event,) = resumes(layout)
    assert event["step"] == 4
    (named,) = event["passed_over"]
    assert named.startswith("step_00000006: the checkpoint is damaged: shard-00000.safetensors has")
    assert content_of(layout.checkpoints / "step_00000006.damaged") == damaged, "its bytes are kept"
    assert read_checkpoint(newest).step == 6
    cut(layout.checkpoints / "step_00000008" / MANIFEST)
    cut(newest / STATE)
    train(8, every_steps=2, keep=9)
    assert [text.partition(":")[0] for text in resumes(layout)[1]["passed_over"]] == ["step_00000008", "step_00000006"]
    expected = {"step_00000008.damaged", "step_00000006.damaged", "step_00000006.damaged-2"}
    assert {name for name in names_below(layout.checkpoints) if "damaged" in name} == expected
    assert (layout.checkpoints / "latest").resolve() == layout.checkpoints / "step_00000008"


def test_when_none_is_whole_all_are_named_and_nothing_is_touched(
    make_context: Callable[..., Context], layout: RunLayout
) -> None:
    for step, name in ((2, MANIFEST), (4, STATE), (6, shard_name(0))):
        cut(layout.checkpoints / f"step_{step:08d}" / name)
    before, names = content_of(layout.checkpoints), names_below(layout.checkpoints)
    with pytest.raises(CheckpointError, match="none of this run's checkpoints is whole") as caught:
        choose_start(make_small(make_context, 8))
    assert caught.value.exit_code == 2
    for name in ("step_00000002: ", "step_00000004: ", "step_00000006: "):
        assert name in caught.value.problems[0].what
    assert caught.value.problems[0].where == str(layout.checkpoints)
    assert content_of(layout.checkpoints) == before
    assert names_below(layout.checkpoints) == names


def test_one_of_another_configuration_is_refused_with_what_differs(
    make_context: Callable[..., Context], layout: RunLayout
) -> None:
    """Put there by hand; the older ones are this run's own, and still nobody may guess which was meant."""
    newest = read_checkpoint(layout.checkpoints / "step_00000006")
    identity = {"fingerprint": "e" * 64, "values": {"run.seed": 7, "model.width": 3}}
    write_manifest(newest.path, dataclasses.replace(newest.manifest, identity=identity))
    before = content_of(layout.checkpoints)
    with pytest.raises(CheckpointError, match="another configuration") as caught:
        choose_start(make_small(make_context, 8))
    assert "run.seed: 7 → 0" in caught.value.problems[0].what
    assert "model.width" in caught.value.problems[0].what
    assert caught.value.problems[0].where == str(newest.path)
    assert caught.value.exit_code == 2
    assert content_of(layout.checkpoints) == before


def test_one_of_a_newer_version_is_refused(make_context: Callable[..., Context], layout: RunLayout) -> None:
    newest = read_checkpoint(layout.checkpoints / "step_00000006")
    write_manifest(newest.path, dataclasses.replace(newest.manifest, v=SCHEMA + 1))
    with pytest.raises(UsageError, match="newer Paceline"):
        choose_start(make_small(make_context, 8))
    assert newest.path.is_dir(), "it is not set aside"


def test_leftovers_of_a_killed_save_vanish(train: Callable[..., Trainer], layout: RunLayout) -> None:
    for name in (".saving-step_00000008-1-4", ".removing-step_00000002"):
        shutil.copytree(layout.checkpoints / "step_00000006", layout.checkpoints / name)
    train(8, every_steps=2, keep=9)
    assert not [name for name in names_below(layout.checkpoints) if name.startswith(".")]


def test_a_fork_begins_at_its_parents_checkpoint(make_context: Callable[..., Context], layout: RunLayout) -> None:
    parent = layout.root / "parent"
    layout.checkpoints.rename(parent)
    layout.events.unlink()
    context = make_small(make_context, 8)
    context.run.parent = {"checkpoint": str(parent / "step_00000004"), "step": 4}
    trainer = build_trainer(context, Regression())
    assert trainer.state.step == 4
    trainer.close()
    assert names_below(layout.checkpoints) == set()
    cut(parent / "step_00000004" / shard_name(0))
    with pytest.raises(CheckpointError, match="damaged: shard-00000"):
        choose_start(context)


def test_a_fresh_run_takes_over_weights_alone(make_context: Callable[..., Context], layout: RunLayout) -> None:
    other = layout.root / "other"
    other.mkdir()
    layout.checkpoints.rename(other / "checkpoints")
    layout.events.unlink()
    context = make_small(make_context, 8)
    source = other / "checkpoints" / "step_00000006"
    context.run.init_from = {"path": str(source), "digest": shards_digest(read_checkpoint(source))}
    start = choose_start(context)
    assert (start.state.step, start.checkpoint) == (0, None)
    model = Regression().build_model(None)
    start.load_model(model)
    saved = torch.nn.utils.parameters_to_vector(model.parameters())
    trainer = build_trainer(context, Regression())
    assert torch.equal(torch.nn.utils.parameters_to_vector(trainer._strategy.model.parameters()), saved)
    trainer.close()


def test_a_link_that_cannot_be_set_is_said_and_stops_nothing(
    make_context: Callable[..., Context], layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments, **options):
        raise PermissionError(1, "Operation not permitted", str(layout.checkpoints))

    context = make_small(make_context, 8)
    (layout.checkpoints / "latest").unlink()
    monkeypatch.setattr("os.symlink", refuse)  # a file system without links
    assert choose_start(context).state.step > 0
    warnings = [event["what"] for event in read_records(layout.events) if event["kind"] == "warning"]
    assert sum("latest: Operation not permitted" in what for what in warnings) == 1, warnings
