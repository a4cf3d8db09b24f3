"""Attention on several ranks: one decision, the same training by any kernel, a refusal that ends all ranks alike."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from paceline.engine.backends import BACKENDS, restricted
from paceline.trained import load_model
from paceline.worker.model import evaluate_splits

OPTIONS = ("train.max_steps=6", "evaluate.every_steps=3", "evaluate.block=16", "checkpoint.every_steps=3")


@pytest.fixture
def _as_before():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks have
    with restricted(tuple(BACKENDS)):
        yield
    torch.set_num_threads(threads)


def effective(run) -> dict[str, object]:
    return {event["about"]: event["effective"] for event in run.events_of("choice")}


@pytest.mark.usefixtures("_as_before")
def test_any_kernel_trains_the_same_and_a_refusal_ends_all_ranks(run_ranks, start_ranks, tmp_path: Path) -> None:
    flash = run_ranks(2, *OPTIONS, "attention.impl=flash", "attention.fallback=error", name="flash")
    math_only = run_ranks(2, *OPTIONS, "attention.exclude=[flash]", name="math")
    eager = run_ranks(2, *OPTIONS, "attention.impl=eager", name="eager")
    assert [effective(run)["attention.backend"] for run in (flash, math_only, eager)] == ["flash", "math", "eager"]
    for other in (math_only, eager):
        for ours, theirs in zip(other.metrics, flash.metrics, strict=True):
            assert math.isclose(ours["loss"], theirs["loss"], rel_tol=1e-5), f"step {ours['step']}"

    # What is loaded again keeps to the run's policy, and gives its digits.
    trained = load_model(tmp_path / "math", "final")
    assert (trained.attention.kernel, "flash" in trained.attention.backends) == ("sdpa", False)
    answer = {each["split"]: each["metrics"] for each in evaluate_splits(trained)["splits"]}
    assert not torch.backends.cuda.flash_sdp_enabled()
    (logged,) = [row for row in math_only.validation if row["split"] == "validation" and row["step"] == 6]
    assert answer["validation"] == {name: logged[name] for name in answer["validation"]}

    # A request that the CPU cannot serve: both ranks end alike, with the reason.
    strict = ("attention.impl=flash", "attention.fallback=error", "model.attention_dropout=0.1")
    refused = start_ranks(2, *OPTIONS, *strict, name="refused")
    refused.wait()
    assert refused.codes == [2, 2]
    assert "do not support non-zero dropout" in refused.text(0)
    fallen = run_ranks(2, *OPTIONS, "attention.impl=flash", "model.attention_dropout=0.1", name="fallen")
    (warning,) = [event for event in fallen.events_of("warning") if "attention.impl=flash" in event["what"]]
    assert "do not support non-zero dropout" in warning["why"]
    assert effective(fallen)["attention.backend"] == "training math, evaluation flash"
