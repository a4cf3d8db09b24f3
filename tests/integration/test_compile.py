"""torch.compile on several ranks: where one of them cannot, none does; with the real compiler a killed run ends with the same bits."""

from __future__ import annotations

import pytest

from tests.integration.conftest import HARD, assert_same_bits, losses

STEPS = ("train.max_steps=4", "model.dropout=0.2", "parallel.bucket_mb=0.004")


def test_one_rank_that_cannot_compile_takes_the_others_along(run_ranks, start_ranks):
    plain = run_ranks(2, *STEPS, name="plain")
    started = start_ranks(2, *STEPS, "train.compile.enabled=true", plant="compiler:refuses_on=1")
    run = started.wait()
    assert started.codes == [0, 0], started.text()
    assert losses(run) == losses(plain)
    choices = [event["effective"] for event in run.events_of("choice", about="train.compile.enabled")]
    assert choices == [True, False]
    (warning,) = run.events_of("warning")
    assert "rank 1" in warning["why"]
    assert "planted" in run.layout.log(1).read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_compiled_run_that_was_killed_ends_with_the_same_bits(run_ranks, start_ranks):
    """The real compiler; sequences of one length, so that all batches but the last of an epoch have one shape."""
    options = [text for text in HARD if not text.startswith(("train.micro_batch", "evaluate"))]
    common = (*options, "train.max_steps=9", "train.compile.enabled=true", "checkpoint.asynchronous=false")
    reference = start_ranks(2, *common, name="reference")
    expected = reference.wait(timeout_s=280)
    assert reference.codes == [0, 0], reference.text()
    killed = start_ranks(2, *common, plant="kill:rank=1,step=7")
    killed.wait(timeout_s=200)
    again = start_ranks(2, *common)
    run = again.wait(timeout_s=200)
    assert again.codes == [0, 0], again.text()
    assert run.events_of("plan")[-1]["start_step"] == 4
    assert_same_bits(run, expected)
