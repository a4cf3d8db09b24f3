"""A schedule that is laid out for another length than the run's."""

from __future__ import annotations

import pytest

from paceline.config.contradictions import Facts
from paceline.errors import ConfigError
from paceline.recipes.job import load_job


def test_it_is_part_of_the_identity_only_where_it_is_given() -> None:
    plain, longer = load_job("sasrec", environ={}), load_job("sasrec", ["train.schedule.horizon=900"], environ={})
    assert "train.schedule.horizon" not in plain.identity()["values"]
    assert longer.identity()["fingerprint"] != plain.identity()["fingerprint"]


def test_a_warm_up_may_be_longer_than_a_run_whose_schedule_is_longer_still() -> None:
    words = ["train.max_steps=20", "train.epochs=null", "train.schedule.warmup_steps=50"]
    with pytest.raises(ConfigError, match="not shorter than the run"):
        load_job("sasrec", words, environ={}).check(Facts(1, 0))
    load_job("sasrec", [*words, "train.schedule.horizon=51"], environ={}).check(Facts(1, 0))
    with pytest.raises(ConfigError, match=r"not shorter than train\.schedule\.horizon=50"):
        load_job("sasrec", [*words, "train.schedule.horizon=50"], environ={}).check(Facts(1, 0))


def test_a_constant_rate_leaves_it_without_effect() -> None:
    job = load_job("sasrec", ["train.schedule.horizon=900", "train.schedule.kind=constant"], environ={})
    assert ("train.schedule.horizon", "train.schedule.kind=constant") in job.idle(job.given)
