import json

import pytest

from paceline.cli import explain, sizes
from paceline.cli.launching import plan_launch
from paceline.cli.main import run_command
from paceline.config.describe import describe
from paceline.errors import DataError
from paceline.launch import placement
from paceline.launch.hardware import Gpu
from paceline.recipes.job import load_job
from paceline.recipes.registry import find_recipe

SIZES = {"num_parameters": 12345, "num_train": 1003, "num_evaluate": {"validation": 7}, "details": {"longest": 9}}


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A configuration of its own, on a machine without GPUs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(placement, "list_gpus", list)
    for name in ("NCCL_DEBUGG", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "a.yaml").write_text("recipe: sasrec\ntrain:\n  global_batch: 100\n  max_steps: 50\n")
    return "a.yaml"


@pytest.fixture
def asked(monkeypatch):
    calls = []

    def ask_sizes(target, overrides):
        calls.append((target, list(overrides)))
        return SIZES

    monkeypatch.setattr(explain, "ask_sizes", ask_sizes)
    return calls


def explain_json(capsys, *arguments):
    code = run_command(["explain", *arguments, "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


def test_every_value_is_there_with_its_origin(config, capsys):
    code, record, _ = explain_json(capsys, config, "run.seed=3", "--nproc", "3", "--no-sizes")
    assert code == 0
    assert record["values"].keys() == describe(find_recipe("sasrec").schema).keys()
    assert record["values"]["train.max_steps"] == {"value": 50, "origin": "a.yaml:4", "fingerprint": "operational"}
    assert record["values"]["run.seed"]["origin"] == "override 'run.seed=3'"
    assert record["values"]["launch.nproc"] == {"value": 3, "origin": "flag --nproc", "fingerprint": "operational"}
    assert record["values"]["run.name"]["origin"] == "default"
    assert record["sizes"] is None


def test_what_follows_uses_the_workers_sizes(config, asked, capsys):
    code, record, _ = explain_json(capsys, config, "run.seed=3", "--nproc", "3")
    assert code == 0
    assert asked == [("a.yaml", ["run.seed=3", "launch.nproc=3"])]
    follows = record["follows"]
    assert follows["global_batch"]["value"] == [33, 33, 34]
    assert follows["steps_per_epoch"]["value"] == 11
    assert follows["parameters"]["value"] == 12345
    assert follows["run_directory"]["value"].startswith("runs/sasrec-")
    assert record["world_size"] == 3


def test_the_table_reads_the_same(config, asked, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run_command(["explain", config, "--nproc", "3"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("train.max_steps 50 a.yaml:4 Optimizer steps") for line in lines)
    assert "global batch 100 = 33 + 33 + 34 samples on 3 ranks" in lines
    assert "parameters 12,345" in lines
    assert "world size 3: launch.nproc (flag --nproc)" in lines


def test_the_inherited_environment_is_shown_and_unknown_names_are_warned_about(config, capsys, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUGG", "INFO")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    _, record, _ = explain_json(capsys, config, "--no-sizes")
    notes = {note["name"]: note for note in record["environment"]}
    assert notes["OMP_NUM_THREADS"]["origin"] == "inherited"
    assert notes["NCCL_DEBUGG"]["is_warning"]
    assert "NCCL_DEBUG" in notes["NCCL_DEBUGG"]["reason"]


def test_the_gpus_are_those_that_train_would_use(config, capsys, monkeypatch):
    monkeypatch.setattr(placement, "list_gpus", lambda: [Gpu(index, f"GPU-{index}", "x", 1.0) for index in range(8)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    code, record, _ = explain_json(capsys, config, "launch.gpus=[1]", "--no-sizes")
    shown = {note["name"]: note["value"] for note in record["environment"]}
    planned = plan_launch(load_job(config, ["launch.gpus=[1]"]))
    assert (code, record["world_size"], record["num_gpus"]) == (0, 1, 1)
    assert shown["CUDA_VISIBLE_DEVICES"] == planned.environment.assigned["CUDA_VISIBLE_DEVICES"] == "5"


def test_contradictions_are_refused_after_the_values_are_shown(config, asked, capsys):
    code, record, errors = explain_json(capsys, config, "parallel.backend=nccl", "data.path=none.txt")
    assert code == 2
    assert record["values"]["parallel.backend"]["value"] == "nccl"
    assert "parallel.backend=nccl needs a GPU" in errors
    assert "none.txt" in errors
    assert asked == []


def test_a_contradiction_that_only_the_data_shows(config, asked, capsys):
    arguments = ("train.max_steps=null", "train.schedule.warmup_steps=11")
    code, _, errors = explain_json(capsys, config, *arguments)
    assert code == 2
    assert "which has 11 steps" in errors
    assert explain_json(capsys, config, *arguments, "--no-sizes")[0] == 0


def test_several_wrong_things_at_once(config, capsys):
    code = run_command(["explain", config, "lr=1", "train.global_batch=0", "precision.mode=fp8"])
    errors = capsys.readouterr().err
    assert code == 2
    assert errors.startswith("3 problems:")
    assert errors.count("where: override") == 3


def test_a_worker_describes_the_job():
    pytest.importorskip("torch")
    described = sizes.ask_sizes("sasrec", ["data.users=20", "data.items=30", "data.events_per_user=5"])
    assert described["num_train"] > 0
    assert described["num_parameters"] > 0
    assert described["num_evaluate"]


def test_a_workers_error_arrives_as_it_was_there():
    pytest.importorskip("torch")
    with pytest.raises(DataError) as caught:
        sizes.ask_sizes("sasrec", ["data.path=no/such/file.txt"])
    assert "no/such/file.txt" in caught.value.problems[0].where
