"""`paceline play` as a person uses it: real sweep, real ranks, killed in two phases; and compiled inference with the real compiler."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.config.source import read_layer
from paceline.files import read_json
from paceline.telemetry.reader import read_run
from tests.integration.conftest import assert_gone, final_files, tiny, wait_for_step

STEPS = 800
BOOK = f"""
config: sasrec
phases:
  P0:
    kind: train
    set: {{train.max_steps: 20}}
    gate: [failures == 0, final_loss < first_loss]
  P1:
    kind: sweep
    axes: {{model.blocks: [1, 2], train.optimizer.lr: [0.003, 0.01]}}
    steps: 30
    warmup_steps: 5
    repeats: 1
    racing: false
    objective: ndcg_10
    gate: [failures == 0]
  P2:
    kind: train
    use: P1.best
    set: {{train.max_steps: {STEPS}, checkpoint.every_steps: 50}}
    gate: [failures == 0, steps == {STEPS}]
  P3:
    kind: check
    of: P2
    gate: [equal, num_compared > 0]
"""


def wait_until(done: Callable[[], bool], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def finished_trials(sweep: Path) -> int:
    try:
        return sum(trial["status"] == "ok" for trial in read_json(sweep / "sweep.json")["trials"])
    except FileNotFoundError:
        return 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_p0_to_p3_killed_in_p1_and_again_in_p2(paceline, tmp_path):
    book, out = tmp_path / "book.yaml", tmp_path / "out"
    book.write_text(BOOK)
    # What P1 varies cannot be typed for all phases.
    general = [
        text
        for text in tiny("launch.nproc=2", "launch.gpus=[]")
        if not text.startswith(("model.blocks", "train.optimizer.lr"))
    ]
    command = ("play", str(book), *general, "--out", str(out))

    first = paceline(*command)
    wait_until(lambda: finished_trials(out / "P1" / "sweep") >= 1)
    processes = first.descendants()
    first.process.kill()
    first.process.communicate()
    assert_gone(processes)
    kept = finished_trials(out / "P1" / "sweep")

    second = paceline(*command)
    wait_until((out / "P2" / "run" / "run.json").exists, 240)
    wait_for_step(out / "P2" / "run", 120)
    processes = second.descendants()
    second.process.kill()
    second.process.communicate()
    assert_gone(processes)

    code, said, errors = paceline(*command).finish(timeout_s=240)
    assert code == 0, (said, errors)
    record = read_json(out / "playbook.json")
    assert [(phase["name"], phase["state"], phase["attempts"]) for phase in record["phases"]] == [
        ("P0", "done", 1),
        ("P1", "done", 2),
        ("P2", "done", 2),
        ("P3", "done", 1),
    ]
    trials = [trial for trial in read_json(out / "P1" / "sweep" / "sweep.json")["trials"] if trial["is_counted"]]
    assert kept >= 1
    assert len({trial["case"] for trial in trials}) == len(trials) == 4

    # P2 is P1's winner, and its two halves are one training: the bits of one that nobody disturbed.
    best = read_layer(out / "P1" / "sweep" / "best.yaml").entries
    trained = read_layer(out / "P2" / "run" / "config.yaml").entries
    for key in ("model.blocks", "train.optimizer.lr"):
        assert trained[key].value == best[key].value
    run = read_run(out / "P2" / "run")
    assert len(run.run.attempts) == 2
    assert run.events_of("resume")[0]["step"] > 0
    words = shlex.split(record["phases"][2]["command"])[1:]
    words[words.index("--out") + 1] = str(tmp_path / "undisturbed")
    assert paceline(*words).finish(timeout_s=240)[0] == 0
    assert final_files(tmp_path / "undisturbed") == final_files(out / "P2" / "run")
    assert (out / "report.html").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_inference_gives_the_outputs_of_the_model_as_written(paceline, tmp_path):
    root = tmp_path / "run"
    trained = paceline("train", "sasrec", *tiny("train.max_steps=20", "launch.gpus=[]"), "--out", str(root))
    assert trained.finish()[0] == 0
    code, said, errors = paceline("export", str(root), "--compile-check", "--json").finish(timeout_s=500)
    assert code == 0, errors
    found = json.loads(said)["compile_check"]
    assert found["equal"]
    assert found["compile_s"] > 0
    assert found["eager_ms"] > 0
