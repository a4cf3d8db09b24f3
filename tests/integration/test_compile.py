"""torch.compile on several ranks: the same losses; where one of them cannot, none does."""

from __future__ import annotations

import pytest

from tests.integration.conftest import losses

STEPS = ("train.max_steps=4", "model.dropout=0.2", "train.micro_batch=10")


@pytest.mark.slow
@pytest.mark.parametrize("bucket_mb", [25, 0.004], ids=["cut at the buckets", "in one piece"])
def test_compiled_ranks_train_the_same(run_ranks, bucket_mb):
    steps = ("train.max_steps=2", *STEPS[1:], f"parallel.bucket_mb={bucket_mb}")
    plain = run_ranks(2, *steps, name="plain")
    run = run_ranks(2, *steps, "train.compile.enabled=true", plant="compiler:refuses_on=9")
    assert [event["step"] for event in run.events_of("compile")][:1] == [0]
    assert not run.events_of("warning")
    assert losses(run) == losses(plain)


def test_one_rank_that_cannot_compile_takes_the_others_along(run_ranks, start_ranks):
    plain = run_ranks(2, *STEPS, name="plain")
    started = start_ranks(2, *STEPS, "train.compile.enabled=true", plant="compiler:refuses_on=1")
    run = started.wait()
    assert started.codes == [0, 0], started.text()
    assert losses(run) == losses(plain)
    choices = [event["effective"] for event in run.events_of("choice", about="train.compile.enabled")]
    assert choices == [False]
    (warning,) = run.events_of("warning")
    assert "rank 1" in warning["why"]
    assert "planted" in run.layout.log(1).read_text()
