"""torch.compile on several ranks: where one of them cannot, none does."""

from __future__ import annotations

from tests.integration.conftest import losses

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
