from __future__ import annotations

import pytest

from paceline.bench.loader import measure
from paceline.bench.loading import run
from paceline.errors import UsageError

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


@pytest.mark.slow
def test_against_what_a_step_needs():
    measured = measure("sasrec", TINY, seconds=0.2)
    assert [row["workers"] for row in measured["rows"]] == ["on the device", 0, 1, 2, 4]
    row = measured["rows"][1]
    assert row["times_needed"] == pytest.approx(row["samples_per_s"] / measured["samples_per_s"], rel=0.01)
    assert measured["step_ms"] > measured["data_ms"] > 0
    with pytest.raises(UsageError, match="refused"):
        measure("sasrec", ["model.nonsense=1"])
