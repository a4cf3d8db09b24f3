"""Speech and text aligned for real: tones that were never heard, and real utterances by heart."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.telemetry.reader import Run
from tests.integration.conftest import Started, Zygote


def train(zygote: Zygote, folder: Path, *overrides: str, name: str = "run", limit_s: float) -> Run:
    console = folder / f"{name}-console"
    console.mkdir()
    argv = ["csa", *overrides, "telemetry.tensorboard=false", "--out", str(folder / name)]
    started = Started(zygote, folder / name, zygote.start(1, argv, console, None, False), console)
    run = started.wait(limit_s)
    assert started.codes == [0], started.text()
    return run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_held_out_tones_are_found_by_what_ships(zygote: Zygote, tmp_path: Path) -> None:
    """52 s of CPU time for 120 of the 150 steps (2026-11-16)."""
    run = train(zygote, tmp_path, limit_s=800)
    (*_, last) = run.validation
    assert last["split"] == "validation"
    assert min(last["s2t_recall_1"], last["t2s_recall_1"]) >= 0.9
    assert (last["s2t_median_rank"], last["t2s_median_rank"]) == (1, 1)
    observed = run.events_of("observation")[-1]["values"]
    assert 0.01 <= observed["temperature"] < 0.2
    assert 0 < observed["padding_share"] < 0.6


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.timeout(1800)
def test_a_hundred_utterances_by_heart(zygote: Zygote, tmp_path: Path, real_data: Path) -> None:
    """Whole ones of 2 to 23 s, bucketed into micro-batches of 8, embedded in two passes: 460 s of CPU time (2026-11-16)."""
    run = train(
        zygote,
        tmp_path,
        "data.source=tree",
        f"data.path={real_data / 'LibriSpeech'}",
        "data.crop=whole",
        "data.validation_share=0.05",
        "data.num_workers=0",
        "train.global_batch=47",
        "train.micro_batch=8",
        "train.max_steps=80",
        "evaluate.every_steps=null",
        "evaluate.train_pairs=100",
        "checkpoint.enabled=false",
        limit_s=1700,
    )
    (trained,) = [row for row in run.validation if row["split"] == "train"]
    assert trained["num_samples"] >= 90
    assert min(trained["s2t_recall_1"], trained["t2s_recall_1"]) >= 0.95
    assert run.events_of("observation")[-1]["values"]["padding_share"] < 0.25, "sorted by length, rows are alike"
