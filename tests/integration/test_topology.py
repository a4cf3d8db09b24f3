"""Guarantee 3: the same training, whatever the topology."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest

STEPS = 100
# 37 samples in micro-steps of at most 5: 8, 4, 3 and 2 micro-steps on 1, 2, 3 and 4 ranks. 152 samples: the fifth batch of an epoch has 4.
TRAIN = (f"train.max_steps={STEPS}", "train.micro_batch=5", "telemetry.ledger=true", "loss.kind=bce")
# 3 blocks of 3 samples: on 4 ranks one has nothing to evaluate.
EVALUATE = ("evaluate.at_start=true", "evaluate.every_steps=50", "evaluate.max_samples=7", "evaluate.block=3")


def samples_of_steps(ledger: list[dict]) -> dict[int, list[int]]:
    steps = defaultdict(list)
    for line in sorted(ledger, key=lambda line: (line["step"], line["rank"], line["micro_step"])):
        steps[line["step"]] += line["ids"]
    return dict(steps)


@pytest.mark.timeout(240)
def test_same_samples_losses_and_metrics_on_any_number_of_ranks(run_ranks):
    runs = {ranks: run_ranks(ranks, *TRAIN, *EVALUATE, name=f"on-{ranks}") for ranks in (1, 2, 3, 4)}
    reference = runs[1]
    order = samples_of_steps(reference.ledger())
    sizes = {len(ids) for ids in order.values()}
    assert sizes == {37, 4}, "a partial batch ends each epoch"
    lengths = {line["weight"] / len(line["ids"]) for line in reference.ledger() if line["ids"]}
    assert len(lengths) > 10, "ragged: micro-batches of many mean lengths"
    losses = [row["loss"] for row in reference.metrics]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]
    for ranks, run in runs.items():
        assert samples_of_steps(run.ledger()) == order, f"other samples on {ranks} ranks"
        assert {line["rank"] for line in run.ledger()} == set(range(ranks))
        for step, (ours, theirs) in enumerate(zip((row["loss"] for row in run.metrics), losses, strict=True), start=1):
            assert math.isclose(ours, theirs, rel_tol=1e-5), f"step {step} on {ranks} ranks: {ours} against {theirs}"
        metrics = [{k: v for k, v in row.items() if k not in ("time", "attempt")} for row in run.validation]
        expected = [{k: v for k, v in row.items() if k not in ("time", "attempt")} for row in reference.validation]
        assert metrics == expected, f"other digits on {ranks} ranks"
    assert [(row["step"], row["split"], row["num_samples"]) for row in reference.validation] == [
        (0, "validation", 7),
        (50, "validation", 7),
        (50, "test", 7),  # of the best model, which is not the last one here
        (100, "validation", 7),
    ]
    # The empty slices of a batch of 4 on 4 ranks were trained as dummies: they are in the ledger with weight zero.
    dummies = [line for line in runs[4].ledger() if not line["ids"]]
    assert dummies
    assert {line["weight"] for line in dummies} == {0.0}


def test_every_sample_once_per_epoch_with_loader_processes(run_ranks):
    """Two epochs, on 3 ranks with loader processes and compression: the samples of one rank without them, each once per epoch."""
    common = ("train.max_steps=10", "telemetry.ledger=true", "evaluate.at_start=true", "evaluate.block=16")
    plain = run_ranks(1, *common, name="plain")
    options = ("data.placement=host", "data.num_workers=2", "parallel.compression=bf16", "parallel.bucket_mb=0.01")
    loaded = run_ranks(3, *common, *options, name="loaded")
    order = samples_of_steps(plain.ledger())
    assert samples_of_steps(loaded.ledger()) == order
    for epoch in (0, 1):
        seen = sorted(i for step in range(5 * epoch + 1, 5 * epoch + 6) for i in order[step])
        assert seen == list(range(152))
    for ours, theirs in zip(loaded.metrics, plain.metrics, strict=True):
        assert math.isclose(ours["loss"], theirs["loss"], rel_tol=0.01)
    first, other = plain.validation[0], loaded.validation[0]
    assert first["num_samples"] == 153
    assert [other[name] for name in ("ndcg_10", "hr_10")] == [first[name] for name in ("ndcg_10", "hr_10")]
