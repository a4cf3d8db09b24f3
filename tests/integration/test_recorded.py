"""Guarantees 1, 2 and 9 on a real run: nothing ignored in silence, what ran is recorded, every number comes with its evidence."""

from __future__ import annotations

import json
import math
import os

import pytest

from paceline.launch.results import result_rows


@pytest.fixture
def recorded(run_ranks):
    return run_ranks(
        2,
        "train.max_steps=23",
        "telemetry.log_every=5",
        "evaluate.every_steps=10",
        "precision.mode=bf16",
        "precision.tf32=false",
        "attention.impl=eager",
        "parallel.compression=fp16",
        "parallel.bucket_mb=0.02",
        "data.prefetch=3",
        "stop.min_delta=0.5",
        "train.schedule.kind=constant",
        "loss.num_negatives=3",
    )


def test_what_was_asked_for_what_ran_and_why(recorded):
    choices = {event["about"]: (event["requested"], event["effective"]) for event in recorded.events_of("choice")}
    assert choices["precision.mode"] == ("bf16", "bf16")
    assert choices["attention.impl"] == ("eager", "eager")
    assert choices["parallel.backend"] == ("auto", "gloo")
    assert choices["strategy"] == ("auto", "ddp")
    assert choices["parallel.bucket_mb"] == (0.02, 0.02)
    assert choices["parallel.compression"] == ("fp16", "fp16")
    assert choices["train.optimizer.fused"] == ("auto", True)
    assert all(event["reason"] for event in recorded.events_of("choice"))
    assert all(event["source"] == "rank 0" for event in recorded.events_of("choice")), "told once, not by every rank"

    # What has no effect is said once, with the reason, whether it was typed or stands in a file.
    notes = {event["what"].split()[0]: event["why"] for event in recorded.events_of("note")}
    assert notes == {
        "precision.tf32": "there is no GPU",
        "data.prefetch": "there are no loader processes (the samples live on the device)",
        "train.schedule.min_ratio": "train.schedule.kind=constant",
        "loss.num_negatives": "loss.kind=ce scores the whole catalogue",
    }

    # Origins of every value; the configuration as it was resolved.
    origins = json.loads(recorded.layout.origins.read_text())
    assert origins["parallel.bucket_mb"] == "override 'parallel.bucket_mb=0.02'"
    assert origins["parallel.timeout_s"] == "default"
    assert origins["train.clip_norm"].startswith("configs/sasrec.yaml:")
    assert "bucket_mb: 0.02" in recorded.layout.config.read_text()

    # Every number with its window, count and spread.
    assert [row["step"] for row in recorded.metrics] == [5, 10, 15, 20, 23]
    assert [row["window_steps"] for row in recorded.metrics] == [5, 5, 5, 5, 3]
    for row in recorded.metrics:
        assert row["step_ms"] > 0
        assert row["step_ms_p50"] <= row["step_ms_p90"]
        assert row["step_ms_std"] is not None
        parts = [row[f"{phase}_ms"] for phase in ("data", "forward", "backward", "optimizer")]
        assert all(part > 0 for part in parts)
        assert sum(parts) <= row["step_ms"] * 1.001, "phases lie within the wall time of a step"
        seconds = row["step_ms"] * row["window_steps"] / 1e3
        samples = row["samples"] - (
            recorded.metrics[recorded.metrics.index(row) - 1]["samples"] if row["step"] > 5 else 0
        )
        assert math.isclose(row["samples_per_s"] * seconds, samples, rel_tol=1e-9)
    validated = [row for row in recorded.validation if row["split"] == "validation"]
    assert [(row["step"], row["num_samples"]) for row in validated] == [(10, 153), (20, 153), (23, 153)]
    (tested,) = [row for row in recorded.validation if row["split"] == "test"]
    assert tested["step"] == 10, "of the best model: no later one is better by stop.min_delta"
    for name, _, evidence in result_rows(recorded):
        assert evidence, name
    rows = {name: evidence for name, _, evidence in result_rows(recorded)}
    assert "median of 4 windows" in rows["samples/s"]
    assert rows["test ndcg_10"] == "validation.csv, step 10, 153 samples"
    assert rows["popularity test ndcg_10"] == "153 samples"

    # Both ranks beat, and named their process.
    for rank in (0, 1):
        beats = recorded.beats(rank)
        assert beats[-1]["step"] == 23
        assert beats[-1]["phase"] == "end"
        assert {beat["pid"] for beat in beats} != {os.getpid()}
