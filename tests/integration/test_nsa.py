"""A language model trained on several ranks: gradients travel in bf16, a killed run goes on with the same bits, and what it learned writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.telemetry.reader import Run
from paceline.worker import model as worker_model
from tests.integration.conftest import Started, Zygote, assert_same_bits, losses

TINY = (
    "data.documents=120",
    "data.length=96",
    "data.num_workers=0",
    "model.width=32",
    "model.layers=2",
    "model.head_width=8",
    "train.global_batch=7",
    "train.micro_batch=2",
    "train.max_steps=9",
    "train.schedule.warmup_steps=2",
    "train.optimizer.lr=0.01",
    "parallel.compression=bf16",
    "parallel.bucket_mb=0.02",
    "telemetry.log_every=1",
    "telemetry.heartbeat_s=0.2",
    "telemetry.tensorboard=false",
    "evaluate.every_steps=4",
    "evaluate.max_samples=6",
    "evaluate.block=2",
    "checkpoint.every_epochs=null",
    "checkpoint.every_steps=3",
    "checkpoint.asynchronous=false",
)
"""Several buckets, accumulation, a batch that divides by nothing."""


def train(zygote: Zygote, folder: Path, ranks: int, *overrides: str, name: str, plant: str | None = None) -> Started:
    console = folder / f"{name}-console"
    console.mkdir(exist_ok=True)
    given = {word.partition("=")[0] for word in overrides}
    argv = [
        "nsa",
        *(word for word in TINY if word.partition("=")[0] not in given),
        *overrides,
        "--out",
        str(folder / name),
    ]
    return Started(zygote, folder / name, zygote.start(ranks, argv, console, plant, False), console)


def finish(started: Started, ranks: int) -> Run:
    run = started.wait(150)
    assert started.codes == [0] * ranks, started.text()
    return run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_ranks_killed_and_resumed_with_the_same_bits(zygote: Zygote, tmp_path: Path, capsys, monkeypatch) -> None:
    whole = finish(train(zygote, tmp_path, 3, name="whole"), 3)
    killed = train(zygote, tmp_path, 3, name="killed", plant="kill:rank=1,step=8")
    killed.wait(150)
    assert -9 in killed.codes
    resumed = finish(train(zygote, tmp_path, 3, name="killed"), 3)
    assert [event["start_step"] for event in resumed.events_of("plan")] == [0, 6]
    assert_same_bits(resumed, whole)

    values = [loss for _, loss, *_ in losses(whole)]
    assert values[-1] < values[0]
    said = {event["about"]: event["effective"] for event in whole.events_of("choice")}
    assert said["parallel.compression"] == "bf16"
    for branch in ("compressed", "selected", "window"):
        assert said[f"attention.{branch}"] == f"torch_path.attend_{branch}"
    beats = (tmp_path / "whole" / "heartbeat" / "rank_00000.jsonl").read_text().splitlines()
    assert 0 < json.loads(beats[-1])["model"]["gate_entropy"] <= 1

    monkeypatch.setattr(worker_model, "die_with_agent", lambda: None)  # pytest's own parent is anything
    assert (
        worker_model.main(["sample", str(tmp_path / "whole"), "--prompt=The ", "--tokens", "5", "--temperature", "0"])
        == 0
    )
    answer = json.loads(capsys.readouterr().out)
    assert (answer["num_prompt"], answer["step"]) == (4, whole.run.attempts[-1].step)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("attention", ["always", "never"])
def test_the_number_of_ranks_changes_no_loss(zygote: Zygote, tmp_path: Path, attention: str) -> None:
    """With gradients as they are: what bf16 rounds differs with how the batch is shared out."""
    runs = []
    for ranks in (1, 2):
        overrides = (f"model.sparse={attention}", "run.seed=1", "parallel.compression=none")
        runs.append(finish(train(zygote, tmp_path, ranks, *overrides, name=f"on-{ranks}"), ranks))
    for (_, one, *_), (_, two, *_) in zip(*map(losses, runs), strict=True):
        assert one == pytest.approx(two, rel=2e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_and_recomputed_it_trains_the_same(zygote: Zygote, tmp_path: Path) -> None:
    """Whole rows, so that one compilation serves them all."""
    steps = (
        "model.layers=1",
        "train.max_steps=3",
        "train.global_batch=4",
        "train.micro_batch=4",
        "evaluate.every_steps=null",
    )
    plain = finish(train(zygote, tmp_path, 1, *steps, name="plain"), 1)
    for name, *overrides in (
        ("recomputed", "train.activation_checkpointing=true"),
        ("compiled", "train.compile.enabled=true", "train.compile.dynamic=false"),
    ):
        started = train(zygote, tmp_path, 1, *steps, *overrides, name=name)
        run = started.wait(400)
        assert started.codes == [0], started.text()
        assert not run.events_of("warning")
        for (_, found, *_), (_, expected, *_) in zip(losses(run), losses(plain), strict=True):
            assert found == pytest.approx(expected, rel=1e-5)
    assert run.events_of("compile")
