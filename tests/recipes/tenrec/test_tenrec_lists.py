"""Lists of candidates: where the positive stands, whose rows the recorded negatives are, what they weigh, and on what all of it depends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.engine.draws import sample_keys
from paceline.recipes.tenrec.generate import generate
from paceline.recipes.tenrec.lists import Lists, draw_lists, mean_weight
from paceline.recipes.tenrec.side import ANY, CLICK, Side, build_side
from paceline.recipes.tenrec.split import SIDES, Parameters, Split, split_table
from paceline.workload import Draw

pytestmark = pytest.mark.timeout(60)
NEGATIVES, RECORDED = 19, 12


@pytest.fixture(scope="module", params=["user", "row"])
def split(request: pytest.FixtureRequest) -> Split:
    return split_table(generate(users=200, items=100, rows=12_000, seed=1).table, Parameters(request.param))


@pytest.fixture(scope="module")
def side(split: Split) -> Side:
    return build_side(split, "train", ANY)


def draw(side: Side, ids: np.ndarray, epoch: int = 0) -> Lists:
    return draw_lists(side, side.positives[ids], sample_keys(Draw(0, epoch), ids), NEGATIVES, RECORDED)


@pytest.mark.parametrize("name", SIDES)
def test_a_side_knows_the_rows_of_each_user(split: Split, name: str) -> None:
    side, table = build_side(split, name, CLICK), split.table
    rows = set(split.rows(name).tolist())
    for user in range(0, table.num_users, 17):
        own = table.order[side.begins[user] : side.begins[user] + side.lengths[user]].tolist()
        assert own == [row for row in table.rows_of(user).tolist() if row in rows]
        assert side.num_negatives[user] == sum(table.actions[row] == 0 for row in own)
        assert side.num_positives[user] == sum(table.actions[row] & 1 for row in own)
    assert sorted(side.positives.tolist()) == sorted(row for row in rows if table.actions[row] & 1)


def test_the_positive_stands_anywhere_and_is_the_rows_own_item(side: Side) -> None:
    ids = np.arange(len(side.positives))
    lists = draw(side, ids)
    assert np.array_equal(lists.items[ids, lists.places], side.table.item[side.positives])
    assert np.all(lists.weights[ids, lists.places] == 1)
    counts = np.bincount(lists.places, minlength=NEGATIVES + 1)
    assert counts.min() > 0.5 * counts.mean()
    assert counts.max() < 1.5 * counts.mean()


def test_recorded_negatives_are_rows_of_the_user_that_nothing_came_of(side: Side) -> None:
    table, ids = side.table, np.arange(0, len(side.positives), 7)
    lists = draw(side, ids)
    for row, items, weights, place in zip(side.positives[ids], lists.items, lists.weights, lists.places, strict=True):
        user = table.user[row]
        own = table.order[side.begins[user] : side.begins[user] + side.lengths[user]]
        shown = np.sort(table.item[own[table.actions[own] == 0]])
        recorded = np.delete(items, place)[np.delete(weights, place) > 0]
        assert len(recorded) <= RECORDED
        # Each row at most once: no item more often than it was shown.
        found, counts = np.unique(recorded, return_counts=True)
        times = np.searchsorted(shown, found, "right") - np.searchsorted(shown, found, "left")
        assert np.all(counts <= times)
        sampled = np.delete(items, place)[np.delete(weights, place) == 0]
        assert not np.any(sampled == table.item[row])
        assert sampled.min(initial=1) >= 1
        assert sampled.max(initial=1) <= table.num_items


def test_weights_bring_back_the_numbers_that_were_recorded(side: Side) -> None:
    """Over all lists, positives and negatives weigh as many as there are of users that have both: so the share of clicks is right."""
    ids = np.arange(len(side.positives))
    lists = draw(side, ids)
    users = np.flatnonzero(side.num_positives)
    expected = np.minimum(side.num_negatives[users] / side.num_positives[users], NEGATIVES) @ side.num_positives[users]
    assert lists.weights.sum() - len(ids) == pytest.approx(expected, rel=0.02)
    assert lists.weights.sum() / len(ids) == pytest.approx(mean_weight(side, NEGATIVES), rel=0.02)


def test_a_list_depends_on_its_sample_alone(side: Side) -> None:
    all_of_them, ids = draw(side, np.arange(50)), np.array([31, 4, 17])
    some = draw(side, ids)
    for name in ("items", "places", "weights"):
        assert np.array_equal(getattr(some, name), getattr(all_of_them, name)[ids])
    assert not np.array_equal(draw(side, ids, epoch=1).items, some.items)


def test_without_recorded_ones_all_are_sampled(side: Side) -> None:
    ids = np.arange(40)
    lists = draw_lists(side, side.positives[ids], torch.arange(40), NEGATIVES, 0)
    assert (lists.weights > 0).sum() == 40
