import numpy as np

from paceline.recipes.sasrec.interactions import drop_short_users, group_events


def names(*words):
    return np.array([word.encode() for word in words])


def test_events_are_grouped_by_user_and_sorted_by_time_with_ties_in_order():
    data = group_events(
        np.array([1, 0, 1, 0, 1]),
        np.array([1, 2, 3, 4, 5]),
        np.array([5.0, 2.0, 5.0, 1.0, 4.0]),
        names("a", "b"),
        names(*"12345"),
    )
    assert data.offsets.tolist() == [0, 2, 5]
    assert data.items.tolist() == [4, 2, 5, 1, 3]
    assert data.times.tolist() == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_without_times_the_order_given_counts():
    data = group_events(np.array([1, 0, 1, 0]), np.array([4, 3, 2, 1]), None, names("a", "b"), names(*"1234"))
    assert data.items.tolist() == [3, 1, 4, 2]
    assert data.times is None


def test_short_users_go_with_the_items_only_they_had():
    data = group_events(
        np.array([0, 1, 1, 2, 2, 2]),
        np.array([1, 2, 3, 3, 4, 3]),
        np.arange(6.0),
        names("a", "b", "c"),
        names("p", "q", "r", "s"),
    )
    kept = drop_short_users(data, 3)
    assert kept.user_names.tolist() == [b"c"]
    assert kept.item_names.tolist() == [b"r", b"s"]
    assert kept.offsets.tolist() == [0, 3]
    assert kept.items.tolist() == [1, 2, 1]
    assert kept.times.tolist() == [3.0, 4.0, 5.0]
    assert drop_short_users(data, 1) is data
    assert drop_short_users(data, 9).num_events == 0
