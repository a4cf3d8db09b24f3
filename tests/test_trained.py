from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from paceline import trained as module
from paceline.engine.state import TrainState
from paceline.errors import CheckpointError, DataError, UsageError
from paceline.telemetry.checkpoints import MANIFEST, read_checkpoint, shard_name, step_name, write_manifest
from paceline.telemetry.exports import building_export
from paceline.telemetry.layout import RunLayout
from paceline.trained import Trained, load_model
from paceline.worker.model import write_files
from paceline.workload import Draw
from tests.saved_runs import build_weights, save_checkpoint, save_run


def export(trained: Trained, target: Path) -> Path:
    with building_export(target) as directory:
        write_files(trained, directory)
    return target


def scores(trained: Trained, device: str = "cpu") -> torch.Tensor:
    batch = trained.workload.evaluation_set("test").fetch(range(9), Draw(0, 0))
    with torch.no_grad():
        return trained.model.last_hidden({name: value.to(device) for name, value in batch.items()}).cpu()


def assert_step(trained: Trained, step: int) -> None:
    """Its weights are those of that step, all of them, and ready for use."""
    assert trained.step == step
    weights = build_weights(trained.job, step)
    found = trained.model.state_dict()
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    assert not trained.model.training


def test_a_run_gives_its_best(tmp_path: Path) -> None:
    save_run(tmp_path / "run", best=3)
    trained = load_model(tmp_path / "run")
    assert_step(trained, 3)
    assert trained.note == ""
    assert trained.where.endswith("step_00000003")
    assert trained.job.config.recipe == "sasrec"


@pytest.mark.parametrize(("word", "step"), [("latest", 6), ("final", 6), ("best", 3), ("step_00000003", 3)])
def test_a_checkpoint_by_its_word(tmp_path: Path, word: str, step: int) -> None:
    layout = save_run(tmp_path / "run", best=3)
    assert_step(load_model(tmp_path / "run", word), step)
    assert_step(load_model(layout.checkpoints / word), step)
    assert_step(load_model(str(tmp_path / "run"), str(layout.checkpoints / word)), step)


def test_without_a_best_one_the_newest_whole_one_is_taken_and_said(tmp_path: Path) -> None:
    layout = save_run(tmp_path / "run")
    trained = load_model(tmp_path / "run")
    assert_step(trained, 6)
    assert "no best checkpoint" in trained.note
    damage(layout, 6)
    trained = load_model(tmp_path / "run")
    assert_step(trained, 3)
    assert "damaged: step_00000006" in trained.note
    assert load_model(tmp_path / "run", "latest").note == "passed over, because they are damaged: step_00000006"


def damage(layout: RunLayout, step: int) -> None:
    shard = layout.checkpoints / step_name(step) / shard_name(0)
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)


def test_a_damaged_one_is_refused(tmp_path: Path) -> None:
    layout = save_run(tmp_path / "run", best=3)
    damage(layout, 3)
    with pytest.raises(CheckpointError, match="checksum"):
        load_model(tmp_path / "run")
    with pytest.raises(CheckpointError, match="checksum"):
        load_model(layout.checkpoints / "step_00000003")
    (layout.checkpoints / "step_00000006" / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="missing"):
        load_model(layout.checkpoints / "step_00000006")
    with pytest.raises(CheckpointError, match="no checkpoint of this run is whole"):
        load_model(tmp_path / "run", "latest")


def test_one_from_a_newer_version_is_refused(tmp_path: Path) -> None:
    layout = save_run(tmp_path / "run", best=3)
    manifest = layout.checkpoints / "step_00000003" / MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"v": 99}))
    with pytest.raises(UsageError, match="newer"):
        load_model(tmp_path / "run")


def test_a_misspelt_word(tmp_path: Path) -> None:
    save_run(tmp_path / "run", best=3)
    with pytest.raises(UsageError, match="there is no checkpoint 'bset'") as caught:
        load_model(tmp_path / "run", "bset")
    assert caught.value.problems[0].do == "use best"
    with pytest.raises(UsageError) as caught:
        load_model(tmp_path / "run", "quux")
    assert "step_00000003" in caught.value.problems[0].do


def test_what_has_no_checkpoint(tmp_path: Path) -> None:
    save_run(tmp_path / "run", steps=())
    with pytest.raises(UsageError, match="this run has no checkpoint"):
        load_model(tmp_path / "run")
    with pytest.raises(UsageError, match="no such directory"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="neither a run directory"):
        load_model(tmp_path)


def test_a_checkpoint_away_from_its_run(tmp_path: Path) -> None:
    layout = save_run(tmp_path / "run", best=3)
    away = tmp_path / "away" / "checkpoints" / "step_00000003"
    shutil.copytree(layout.checkpoints / "step_00000003", away)
    with pytest.raises(UsageError, match="away from its run") as caught:
        load_model(away)
    assert "paceline export RUN" in caught.value.problems[0].do
    assert_step(load_model(tmp_path / "run", away), 3)


def test_a_recipe_that_is_not_installed_here(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    shutil.copy(Path(__file__).parent / "data" / "run-v1" / "run.json", root)
    (root / "config.yaml").write_text("recipe: elsewhere\n")
    with pytest.raises(UsageError, match=r"the recipe 'elsewhere' .* is not installed here") as caught:
        load_model(root)
    assert caught.value.problems[0].do == "install the package that has the recipe 'elsewhere'"


def test_a_checkpoint_of_another_configuration(tmp_path: Path) -> None:
    save_run(tmp_path / "run")
    other = save_run(tmp_path / "other", "run.seed=5", "model.width=8")
    with pytest.raises(CheckpointError, match="another configuration") as caught:
        load_model(tmp_path / "run", other.checkpoints / "latest")
    assert "model.width: 8 → 16" in str(caught.value)
    assert "run.seed: 5 → 0" in str(caught.value)


def test_weights_that_do_not_fit_although_the_manifest_says_so(tmp_path: Path) -> None:
    layout = save_run(tmp_path / "run", steps=(3,), best=3)
    other = save_run(tmp_path / "other", "model.width=8", steps=(3,))
    own, foreign = (each.checkpoints / "step_00000003" for each in (layout, other))
    shutil.copy(foreign / shard_name(0), own / shard_name(0))
    files = read_checkpoint(foreign).manifest.files
    write_manifest(own, dataclasses.replace(read_checkpoint(own).manifest, files=files))
    with pytest.raises(CheckpointError, match="do not fit this model"):
        load_model(tmp_path / "run")


def test_other_data_than_it_was_trained_on(tmp_path: Path) -> None:
    data = tmp_path / "ratings.txt"
    data.write_text("".join(f"{user} {(user + k) % 9}\n" for user in range(20) for k in range(6)))
    save_run(tmp_path / "run", f"data.path={data}", "data.format=text", best=3)
    export(load_model(tmp_path / "run"), tmp_path / "export")
    with open(data, "a") as file:
        file.write("0 7\n")
    for path in ("run", "export"):
        with pytest.raises(DataError, match="not what this model was trained on"):
            load_model(tmp_path / path)
    data.unlink()
    with pytest.raises(DataError, match="does not exist"):
        load_model(tmp_path / "export")


def test_an_export_gives_the_same_outputs_bit_for_bit(tmp_path: Path) -> None:
    save_run(tmp_path / "run", best=3)
    trained = load_model(tmp_path / "run")
    again = load_model(export(trained, tmp_path / "export"))
    assert_step(again, 3)
    assert (again.checkpoint, again.note) == (None, "")
    assert torch.equal(scores(again), scores(trained))
    assert not torch.equal(scores(again), scores(load_model(tmp_path / "run", "latest")))


def test_an_export_with_other_bytes_is_refused(tmp_path: Path) -> None:
    save_run(tmp_path / "run", best=3)
    target = export(load_model(tmp_path / "run"), tmp_path / "export")
    content = bytearray((target / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (target / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="checksum"):
        load_model(target)


def test_a_checkpoint_that_is_removed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run that trains on does: the newest is another one by the time its files are read."""
    layout = save_run(tmp_path / "run")
    job = load_model(tmp_path / "run").job
    read_model = module.read_model

    def remove_first(checkpoint):
        if checkpoint.step == 6:
            save_checkpoint(layout, job, 9)
            shutil.rmtree(checkpoint.path)
        return read_model(checkpoint)

    monkeypatch.setattr(module, "read_model", remove_first)
    assert_step(load_model(tmp_path / "run", "latest"), 9)


def test_the_callers_random_numbers_stay_as_they_were(tmp_path: Path) -> None:
    save_run(tmp_path / "run", best=3)
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    load_model(tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("device", ["cuda:99", "graphics"])
def test_a_device_that_is_not_there(tmp_path: Path, device: str) -> None:
    with pytest.raises(UsageError, match="there is no"):
        load_model(tmp_path, device=device)


def test_a_model_is_built_by_what_its_run_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_run(tmp_path / "run", best=3)
    workload = type(load_model(tmp_path / "run").workload)
    build, given = workload.build_model, []
    monkeypatch.setattr(workload, "settle", lambda *given: pytest.fail("found anew"), raising=False)
    monkeypatch.setattr(workload, "keep", lambda self, setting, before: {"kept": before}, raising=False)
    monkeypatch.setattr(workload, "build_model", lambda self, setting: given.append(setting) or build(self, setting))
    load_model(tmp_path / "run")
    monkeypatch.setattr(module, "read_state", lambda checkpoint: TrainState(checkpoint.step, settled={"found": "this"}))
    trained = load_model(tmp_path / "run")
    load_model(export(trained, tmp_path / "exported"))
    settled = [setting.settled for setting in given]
    assert settled == [{"kept": {}}, {"kept": {"found": "this"}}, {}], "no whole state, a state, an export"
