import numpy as np

from paceline.recipes.sasrec.interactions import Interactions
from paceline.recipes.sasrec.pace import measure_pace
from paceline.recipes.sasrec.split import split_last


def measure(*times):
    lengths = [len(row) for row in times]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    events = np.concatenate([np.asarray(row, float) for row in times])
    names = np.arange(len(times)).astype(bytes)
    return measure_pace(
        split_last(Interactions(offsets, np.ones(len(events), int), events, names, np.array([b"1"])))
    ).tolist()


def test_the_shortest_gap_above_zero_of_training_events():
    # The docstring's example, with two held-out events one second apart, which count for nothing.
    assert measure([0, 0, 60, 180, 3600, 9000, 9001]) == [60.0]


def test_users_without_a_gap_take_the_median():
    assert measure([0, 10, 50, 50, 50], [5, 5, 5, 9, 9], [0, 30, 60, 90, 99], [7], [0, 50, 100, 200, 300]) == [
        10,
        30,
        30,
        30,
        50,
    ]


def test_where_nobody_has_a_gap_the_unit_is_a_second():
    assert measure([4, 4, 4, 80, 81], [3]) == [1.0, 1.0]


def test_the_pace_does_not_depend_on_the_neighbour_before():
    """The gap between one user's last and the next user's first event is none."""
    assert measure([0, 100, 300, 301, 302], [303, 403, 503, 600, 700]) == [100.0, 100.0]
