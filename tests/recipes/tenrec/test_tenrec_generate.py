from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import UsageError
from paceline.recipes.tenrec.generate import Generated, generate
from paceline.recipes.tenrec.generated_cache import load_generated
from paceline.recipes.tenrec.table import Items, Table, Users

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def made() -> Generated:
    return generate(users=2000, items=500, rows=200_000, seed=0)


def is_same(first: object, second: object) -> bool:
    """Of two tables or of their parts."""
    for field in fields(first):  # type: ignore[arg-type]
        one, other = getattr(first, field.name), getattr(second, field.name)
        if isinstance(one, Users | Items):
            if not is_same(one, other):
                return False
        elif not np.array_equal(one, other):
            return False
    return True


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """By ranks; ties do not matter here."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    positives = int(labels.sum())
    above = ranks[labels > 0].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(labels) - positives)))


def test_the_same_numbers_give_the_same_rows() -> None:
    first = generate(50, 30, 1000, seed=1).table
    assert is_same(first, generate(50, 30, 1000, seed=1).table)
    assert first.identity == generate(50, 30, 1000, seed=1).table.identity
    for other in ((51, 30, 1000, 1), (50, 31, 1000, 1), (50, 30, 1001, 1), (50, 30, 1000, 2)):
        table = generate(*other).table
        assert not is_same(first, table)
        assert first.identity != table.identity


@pytest.mark.parametrize(("users", "items", "rows"), [(1, 1, 1), (5, 3, 40), (100, 7, 30), (3, 2000, 140_000)])
def test_any_size_gives_exactly_so_many_rows(users: int, items: int, rows: int) -> None:
    table = generate(users, items, rows, seed=3).table
    assert (table.num_rows, table.num_users, table.num_items) == (rows, users, items)
    assert 1 <= table.item.min() <= table.item.max() <= items
    assert table.user.max() < users
    assert table.items.exposures.sum() == rows
    assert sum(len(table.rows_of(user)) for user in range(users)) == rows


def test_actions_happen_as_often_as_the_truth_says(made: Generated) -> None:
    table = made.table
    chances = made.probability(table.user, table.item)
    labels = table.labels(np.arange(table.num_rows))
    for action in range(4):
        order = np.argsort(chances[:, action])
        for part in np.array_split(order, 8):
            expected = chances[part, action]
            error = np.sqrt((expected * (1 - expected)).sum()) / len(part)
            assert abs(labels[part, action].mean() - expected.mean()) < 4.5 * error
    assert np.all(labels[labels[:, 0] == 0] == 0)
    rates = labels.mean(0)
    assert 0.08 < rates[0] < 0.3
    assert np.all(rates[1:] < 0.08)
    assert np.all(rates[1:] > 0.002)
    assert np.all((table.watching > 0) == (labels[:, 0] > 0))


def test_a_history_is_what_the_user_clicked_last(made: Generated) -> None:
    table = made.table
    lengths = []
    for user in range(60):
        rows = table.rows_of(user)
        past = [int(item) for item in table.history[rows[0]][::-1] if item]
        lengths.append(len(past))
        for row in rows:
            expected = past[::-1][:10]
            assert table.history[row].tolist() == expected + [0] * (10 - len(expected))
            if table.actions[row] & 1:
                past.append(int(table.item[row]))
    assert max(lengths) == 10
    assert min(lengths) < 10


def test_history_tells_a_users_topics_and_popularity_tells_little(made: Generated) -> None:
    table, world = made.table, made.generator.world
    clicked = table.actions & 1
    best = auc(made.probability(table.user, table.item)[:, 0], clicked)
    assert 0.85 < best < 0.95
    of_topic = ((world.topic[table.history] == world.topic[table.item][:, None]) & (table.history > 0)).sum(1)
    rate = (table.items.clicks + 1) / (table.items.exposures + 8)
    seen = np.log(rate / (1 - rate))[table.item] + 0.6 * np.sqrt(of_topic)
    assert auc(seen, clicked) > 0.5 + 0.85 * (best - 0.5)
    assert auc(of_topic + 1e-3 * np.random.default_rng(0).random(len(of_topic)), clicked) > 0.65
    assert auc(table.items.exposures[table.item], clicked) < 0.55


def test_who_ranks_for_each_user_beats_popularity_and_what_was_clicked_most(made: Generated) -> None:
    """The gain of an item is the chance of a click; the discount is that of NDCG@10."""
    table, world = made.table, made.generator.world
    users, items = np.arange(200), np.arange(1, table.num_items + 1)
    gains = np.stack([made.probability(np.full(len(items), user), items)[:, 0] for user in users])
    discount = 1 / np.log2(np.arange(2, 12))
    ideal = (np.sort(gains, 1)[:, :-11:-1] * discount).sum(1)

    def ndcg(scores: np.ndarray) -> float:
        best = np.argsort(-np.broadcast_to(scores, gains.shape), 1, kind="stable")[:, :10]
        return float(((np.take_along_axis(gains, best, 1) * discount).sum(1) / ideal).mean())

    mine = (made.generator.people.topics[users][:, :, None] == world.topic[items]).any(1)
    clicks = table.items.clicks[1:]
    rate = (clicks + 1) / (table.items.exposures[1:] + 8)
    assert ndcg(mine * rate) > 3 * max(ndcg(clicks), ndcg(table.items.exposures[1:]))
    assert ndcg(mine * rate) > 1.3 * ndcg(mine * clicks)


def test_gender_and_age_say_something_of_what_a_user_likes(made: Generated) -> None:
    people = made.generator.people
    groups = people.gender.astype(int) * 8 + people.age
    first = people.topics[:, 0]
    shares = np.array([np.bincount(first[groups == g], minlength=16).max() / (groups == g).sum() for g in range(8, 24)])
    assert shares.mean() > 2 / 16


def test_kept_in_files_they_are_the_same_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = generate(40, 20, 2000, seed=5)
    found = load_generated(40, 20, 2000, 5, tmp_path)
    assert isinstance(found.table, Table)
    assert is_same(found.table, made.table)
    (directory,) = tmp_path.iterdir()
    assert not found.table.history.flags.writeable
    times = (directory / "prepared.json").stat().st_mtime_ns
    load_generated(40, 20, 2000, 5, tmp_path)
    assert (directory / "prepared.json").stat().st_mtime_ns == times
    content = (directory / "item.u4").read_bytes()
    for record in ((directory / "prepared.json").read_text(), "{"):
        (directory / "prepared.json").write_text(record)
        (directory / "item.u4").write_bytes(content[:-1] + b"\x7f")
        assert is_same(load_generated(40, 20, 2000, 5, tmp_path).table, made.table)
    load_generated(40, 20, 2000, 6, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr("paceline.recipes.tenrec.generated_cache.GENERATOR_VERSION", 9)
    load_generated(40, 20, 2000, 5, tmp_path)
    assert json.loads((directory / "prepared.json").read_text())["version"] == 9


def test_a_cache_that_cannot_be_written_names_what_chooses_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        load_generated(40, 20, 2000, 5, tmp_path / "file")
    assert caught.value.problems[0].do == "choose another place with data.cache=DIR"
