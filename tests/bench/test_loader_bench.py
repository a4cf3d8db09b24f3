from __future__ import annotations

import pytest

from paceline.bench.loader import _explain, measure
from paceline.bench.loading import run
from paceline.errors import ConfigError, DataError, NonFiniteError, Problem
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout

TINY = [
    "data.users=60",
    "data.items=30",
    "data.events_per_user=6",
    "data.max_length=5",
    "model.width=4",
    "model.feed_forward=4",
    "train.global_batch=16",
]


def test_every_way_to_load_is_measured(tmp_path):
    told = run("sasrec", [*TINY, "data.num_workers=7"], [0, 1], 0.1, str(tmp_path))
    assert told["global_batch"] == 16
    assert [row["workers"] for row in told["rows"]] == ["on the device", 0, 1]
    for row in told["rows"]:
        assert row["first_batch_ms"] > 0
        assert row["batches"] > 0
        assert row["samples_per_s"] > 0
        assert row["delivered_mb_per_s"] > 0
        assert row["disk_mb_per_s"] >= 0
    on_host = run("sasrec", [*TINY, "data.placement=host"], [0], 0.05, str(tmp_path))
    assert [row["workers"] for row in on_host["rows"]] == [0], "nothing lives on the device"


def test_what_training_refuses_and_what_the_bench_sets_is_refused_before_it_starts():
    with pytest.raises(ConfigError) as caught:
        measure("sasrec", ["model.nonsense=1", "train.optimizer.lr=fast"])
    assert [problem.where for problem in caught.value.problems] == [
        "override 'model.nonsense=1'",
        "override 'train.optimizer.lr=fast'",
    ]
    assert all(problem.do for problem in caught.value.problems)
    with pytest.raises(ConfigError) as caught:
        measure("sasrec", ["train={max_steps: 3}", "launch.nproc=2"])
    assert ["the bench itself sets" in problem.what for problem in caught.value.problems] == [True, True]
    with pytest.raises(DataError):
        measure("sasrec", ["data.path=nowhere.dat"])


def test_why_the_measured_run_failed(tmp_path):
    layout = RunLayout(tmp_path)
    problem = {"what": "the loss is nan", "where": "step 1", "do": "lower it"}
    log = EventLog(layout.events, "rank 0", 1)
    assert "it broke" in _explain("it broke\n\n", tmp_path, ["paceline"]).problems[0].what
    log.write("failure", error="RankLostError", problems=[problem | {"what": "gone"}], secondary=True)
    log.write("failure", error="NonFiniteError", problems=[problem])
    log.close()
    error = _explain("it broke", tmp_path, ["paceline"])
    assert (type(error), error.problems) == (NonFiniteError, (Problem(**problem),))


@pytest.mark.slow
def test_against_what_a_step_needs():
    measured = measure("sasrec", TINY, seconds=0.2)
    assert [row["workers"] for row in measured["rows"]] == ["on the device", 0, 1, 2, 4]
    row = measured["rows"][1]
    assert row["times_needed"] == pytest.approx(row["samples_per_s"] / measured["samples_per_s"], rel=0.01)
    assert measured["step_ms"] > measured["data_ms"] > 0
