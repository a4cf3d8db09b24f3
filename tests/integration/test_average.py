"""The moving average of the weights in a whole run: resumed with the same bits, evaluated, chosen and exported in the weights' place."""

from __future__ import annotations

import torch

from paceline.engine.checkpoint.reading import read_model, read_tensors
from paceline.engine.checkpoint.tensors import EMA, MODEL
from paceline.telemetry.checkpoints import find_checkpoint
from paceline.telemetry.exports import read_export
from paceline.trained import load_model
from paceline.worker.model import evaluate_splits, write_files
from tests.integration.conftest import HARD, assert_same_bits

RUN = (*HARD, "checkpoint.asynchronous=false", "stop.min_delta=10")  # nothing is so much better than the first one
EMA_RUN = (*RUN, "train.max_steps=12", "train.optimizer.ema=0.8")


def test_a_run_with_an_average(run_ranks, start_ranks, tmp_path):
    reference = run_ranks(3, *EMA_RUN, name="reference")
    killed = start_ranks(3, *EMA_RUN, plant="kill:rank=1,step=7")
    killed.wait()
    run = run_ranks(3, *EMA_RUN)
    assert run.events_of("plan")[-1]["start_step"] == 5
    assert_same_bits(run, reference)
    (*_, choice) = run.events_of("choice", about="train.optimizer.ema")
    assert choice["effective"] == 0.8

    # What is loaded is the average, and its metrics are those that the run logged and chose by.
    root = run.layout.root
    best = find_checkpoint(root, "best")
    assert best.step == 5
    trained = load_model(root)
    assert trained.is_average
    weights, average = read_tensors(best, MODEL), read_tensors(best, EMA)
    state = trained.model.state_dict()
    assert all(torch.equal(state[name], average[name]) for name in average)
    assert any(not torch.equal(weights[name], average[name]) for name in average)
    (logged,) = [row for row in run.validation if row["split"] == "validation" and row["step"] == best.step]
    found = {entry["split"]: entry["metrics"] for entry in evaluate_splits(trained)["splits"]}
    assert found["validation"]["ndcg_10"] == logged["ndcg_10"]
    (tested,) = [row for row in run.validation if row["split"] == "test"]
    assert found["test"]["ndcg_10"] == tested["ndcg_10"], "also after the best one was brought back"
    (tmp_path / "export").mkdir()
    write_files(trained, tmp_path / "export")
    assert read_export(tmp_path / "export").is_average
    exported = load_model(tmp_path / "export")
    assert exported.is_average
    assert all(torch.equal(exported.model.state_dict()[name], state[name]) for name in state)

    # Forks in both directions are told what becomes of the average; other weights begin with it.
    final = str(find_checkpoint(root, "final").path)
    longer = ("train.max_steps=14", "train.optimizer.ema=null")
    without = run_ranks(1, *RUN, *longer, "--resume", final, name="without")
    (note,) = [event for event in without.events_of("note") if "average of the weights" in event["what"]]
    assert "left behind" in note["what"]
    assert not read_model(find_checkpoint(without.layout.root))[1]
    origin = str(find_checkpoint(without.layout.root).path)
    again = run_ranks(1, *RUN, "train.max_steps=16", "train.optimizer.ema=0.8", "--resume", origin, name="again")
    (note,) = [event for event in again.events_of("note") if "average of the weights" in event["what"]]
    assert "begins at step 14" in note["what"]
    assert read_model(find_checkpoint(again.layout.root))[1]
    tuned = run_ranks(
        1, "train.max_steps=1", "model.blocks=2", "train.optimizer.lr=1e-30", "--init-from", final, name="t"
    )
    assert tuned.events_of("resume")[0]["what"] == "weights only, their moving average"
    began = read_tensors(find_checkpoint(tuned.layout.root), MODEL)
    ended = read_tensors(find_checkpoint(root, "final"), EMA)
    assert all(torch.equal(began[name], ended[name]) for name in ended)
