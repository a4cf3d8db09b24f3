import json
import shlex
import sys

import pytest

from paceline.bench.sasrec import Epochs, measure, summarize
from paceline.errors import PacelineError, UsageError

TINY = [
    "data.users=40",
    "data.items=30",
    "data.events_per_user=6",
    "data.max_length=5",
    "model.width=4",
    "model.feed_forward=4",
]


def test_a_row_per_system_compared_by_targets_and_not_by_epochs():
    """The rival's epoch takes as long as ours and has a quarter of the targets."""
    ours = [Epochs("paceline", [1.0, 3.0], 400, 0.5), Epochs("paceline", [2.0], 400, 0.7)]
    first, second = summarize([*ours, Epochs("rival", [2.0], 100)])
    assert (first["system"], first["epochs"], first["epoch_s"]) == ("paceline", 3, 2.0)
    assert (first["epoch_s_lowest"], first["epoch_s_highest"], first["evaluation_s"]) == (1.0, 3.0, 0.6)
    assert first["paceline_is_faster"] == 1
    assert (second["paceline_is_faster"], second["evaluation_s"]) == (4.0, None)


@pytest.mark.slow
def test_ours_and_a_rival_in_turn():
    told = {"system": "rival", "epoch_seconds": [5.0], "positions_per_epoch": 10}
    rival = shlex.join([sys.executable, "-c", f"print('loading'); print({json.dumps(json.dumps(told))})"])
    ours, theirs = measure(None, 1, 2, [rival], TINY)
    assert ours.system == "paceline"
    assert len(ours.seconds) == 2, "the first epoch is left out"
    assert all(value > 0 for value in ours.seconds)
    assert 40 < ours.positions < 40 * 5
    assert ours.evaluation_s is not None
    assert theirs == Epochs("rival", [5.0], 10)


@pytest.mark.parametrize(
    "command", ["false", "echo no", "echo '{\"system\": 1}'", shlex.join([sys.executable, "-c", ""])]
)
def test_a_rival_that_tells_nothing_is_named(command, monkeypatch):
    monkeypatch.setattr("paceline.bench.sasrec._run_ours", lambda *arguments: Epochs("paceline", [1.0], 1))
    with pytest.raises(PacelineError, match="did not tell its epochs") as error:
        list(measure(None, 1, 1, [command], []))
    assert error.value.problems[0].where == command


def test_a_setting_that_is_none_is_the_callers_mistake():
    with pytest.raises(UsageError, match="refused"):
        list(measure(None, 1, 1, [], ["model.nonsense=1"]))
