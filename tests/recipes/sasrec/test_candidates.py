import numpy as np

from paceline.recipes.sasrec.candidates import draw_candidates
from paceline.recipes.sasrec.generate import generate_interactions
from paceline.recipes.sasrec.interactions import Interactions
from paceline.recipes.sasrec.split import split_last


def test_candidates_are_items_the_user_never_had_all_alike():
    split = split_last(generate_interactions(users=30, items=40, events_per_user=15, seed=0))
    drawn = draw_candidates(split, 4000)
    for row, user in enumerate(split.held_out):
        had = set(split.interactions.items[slice(*split.interactions.offsets[user : user + 2])].tolist())
        counts = np.bincount(drawn[row], minlength=41)
        left = [item for item in range(1, 41) if item not in had]
        assert counts[left].sum() == 4000
        expected = 4000 / len(left)
        assert (abs(counts[left] - expected) < 6 * np.sqrt(expected)).all()
    assert np.array_equal(drawn, draw_candidates(split, 4000))


def test_a_user_who_had_everything_has_none():
    names = np.arange(1, 4).astype(bytes)
    split = split_last(Interactions(np.array([0, 3]), np.array([1, 2, 3]), None, names[:1], names))
    assert draw_candidates(split, 2).tolist() == [[0, 0]]
