"""A rank that asks for more memory than there is: the message has the sizes, the batch and the way out, and the run directory the rest."""

from __future__ import annotations

import json

import pytest

COMMON = ("train.max_steps=20", "train.micro_batch=6", "data.placement=host")


@pytest.mark.parametrize(
    ("plant", "where", "do"),
    [
        ("hungry:rank=1,step=3", "rank 1, step 3, forward; batch: items ", "train.micro_batch=2 "),
        ("hungry:rank=1,step=0", "rank 1, step 0, start; batch: items ", "train.micro_batch=2 "),
        ("hungry:step=2,evaluation=1", "step 4, evaluate; batch: items ", "set evaluate.block=8"),
    ],
)
def test_what_is_said_and_kept(start_ranks, plant, where, do):
    started = start_ranks(2, *COMMON, "evaluate.every_steps=4", "evaluate.block=16", plant=plant)
    run = started.wait()
    assert 4 in started.codes
    failures = [event for event in run.events_of("failure") if not event["secondary"]]
    assert {event["error"] for event in failures} == {"OutOfMemoryError"}
    failure = failures[0]
    (problem,) = failure["problems"]
    assert "this machine ran out of memory: 4,194,304.00 GiB asked for, " in problem["what"]
    for words in (" free of ", " allocated by this rank", "process "):
        assert words in problem["what"]
    assert where in problem["where"]
    assert "5 samples per micro-step at most, train.global_batch=37" in problem["where"]
    assert do in problem["do"]
    assert ("train.activation_checkpointing=true" in problem["do"]) == ("evaluate" not in where), "it is no cure there"
    kept = json.loads(run.layout.memory(failure["rank"]).read_text())
    assert kept["asked_bytes"] == 2**52
    assert 0 < kept["allocated_bytes"] < kept["total_bytes"]
    assert kept["step"] == failure["step"]
    assert str(run.layout.memory(failure["rank"])) in problem["where"]
