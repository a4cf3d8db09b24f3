import numpy as np

from paceline.recipes.sasrec.generate import generate_interactions

SHORT_S, LONG_S = 1200, 7200


def generate(**changes):
    return generate_interactions(**({"users": 600, "items": 200, "events_per_user": 30, "seed": 0} | changes))


def followers(data):
    """(previous, next, gap in seconds) of every two consecutive events of a user."""
    inside = np.ones(data.num_events - 1, bool)
    inside[data.offsets[1:-1] - 1] = False
    return data.items[:-1][inside], data.items[1:][inside], np.diff(data.times)[inside]


def top_share(previous, following):
    """How much of what follows an item is one of its three most frequent followers."""
    counts = np.zeros((201, 201))
    np.add.at(counts, (previous, following), 1)
    return np.sort(counts, axis=1)[:, -3:].sum() / counts.sum()


def test_the_same_arguments_give_the_same_data_and_others_do_not():
    first, again, other = generate(), generate(), generate(seed=1)
    assert np.array_equal(first.items, again.items)
    assert np.array_equal(first.times, again.times)
    assert not np.array_equal(first.items[:100], other.items[:100])


def test_sizes_follow_the_arguments():
    data = generate(users=3000)
    assert (data.num_users, data.num_items) == (3000, 200)
    assert data.lengths.min() >= 3
    assert abs(data.lengths.mean() - 30) < 2
    assert len(np.unique(data.lengths)) > 20
    assert data.items.min() >= 1
    assert data.items.max() <= 200


def test_the_smallest_sizes_work():
    data = generate(users=1, items=10, events_per_user=4)
    assert data.num_users == 1
    assert data.num_events == data.lengths[0] >= 3


def test_time_does_not_run_backwards():
    assert (followers(generate())[2] >= 0).all()


def test_items_have_successors_within_a_session_and_not_across():
    previous, following, gaps = followers(generate(users=3000))
    near, far = gaps < SHORT_S, gaps > LONG_S
    assert 0.1 < far.mean() < 0.2
    assert top_share(previous[near], following[near]) > 0.5
    assert top_share(previous[far], following[far]) < 0.3


def test_what_follows_depends_on_the_gap_before():
    """An item that opened a session has other successors than within one: only a model that sees time can tell."""
    data = generate(users=3000, items=50)
    previous, following, gaps = followers(data)
    opened = np.concatenate(([False], gaps[:-1] > LONG_S))
    near = gaps < SHORT_S
    tables = np.zeros((2, 51, 51))
    np.add.at(tables, (opened[near].astype(int), previous[near], following[near]), 1)
    assert (tables[0].argmax(axis=1) != tables[1].argmax(axis=1)).mean() > 0.7


def test_some_items_are_popular():
    counts = np.sort(np.bincount(generate().items, minlength=201)[1:])[::-1]
    assert counts[:20].sum() > 0.25 * counts.sum()


def test_repeats_are_more_frequent_than_in_shuffled_data():
    data = generate(items=1000)
    owner = np.repeat(np.arange(data.num_users), data.lengths)

    def repeats(items):
        return len(items) - len(np.unique(owner * 1001 + items))

    shuffled = data.items[np.random.default_rng(0).permutation(data.num_events)]
    assert repeats(data.items) > 1.5 * repeats(shuffled)
