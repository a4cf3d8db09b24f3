"""What the table says of users and items, as serving asks for it."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import UsageError
from paceline.serving.candidates import Candidates
from paceline.serving.query import Query
from paceline.serving.tenrec.stock import ItemColumns, Profile, Stock
from tests.serving.tenrec.small import opened


@pytest.fixture
def stock() -> Stock:
    return Stock(opened().table, opened().split.item_counts()[1])


def test_the_history_goes_on_where_the_last_row_ends(stock: Stock) -> None:
    table, met = stock.table, set()
    for user in range(table.num_users):
        last = table.rows_of(user)[-1]
        recorded = table.history[last].tolist()
        clicked = bool(table.actions[last] & 1)
        met.add(clicked)
        expected = [int(table.item[last]), *recorded[:9]] if clicked else recorded
        assert stock.history_of(user).tolist() == expected
    assert met == {True, False}


def test_seen_is_whatever_was_shown_or_had(stock: Stock) -> None:
    table = stock.table
    for user in (0, 7):
        rows = table.rows_of(user)
        expected = {*table.item[rows].tolist(), *table.history[rows].ravel().tolist()} - {0}
        assert set(stock.seen_by(user).tolist()) == expected


def test_popular_are_all_items_by_the_clicks_of_training(stock: Stock) -> None:
    clicks = opened().split.item_counts()[1]
    assert sorted(stock.popular.tolist()) == list(range(1, stock.table.num_items + 1))
    assert (np.diff(clicks[stock.popular]) <= 0).all()


def test_users_and_items_by_name(stock: Stock) -> None:
    for number in (0, 59):
        assert stock.find_user(str(stock.table.users.name[number])) == number
    assert stock.name_of(stock.find_item("120", "--block")) == "120"


@pytest.mark.parametrize(
    "name", ["0", "61", "-1", "abc", "", "1.5", "99999999999999999999999", "9" * 5000, "--5", "+-5", "²"]
)
def test_who_is_not_there(stock: Stock, name: str) -> None:
    with pytest.raises(UsageError, match="there is no user") as caught:
        stock.find_user(name)
    assert "such as 1, 2, 3" in str(caught.value)


def test_a_typed_history_is_turned_around(stock: Stock) -> None:
    assert stock.type_in(["5", "6", "7"]).tolist() == [7, 6, 5, *[0] * 7]
    assert stock.type_in([str(item) for item in range(1, 13)]).tolist() == list(range(12, 2, -1))


def test_a_query_is_hydrated(stock: Stock) -> None:
    fields = Profile(stock).hydrate(Query(top=1, user=5, seen=np.array([119])))
    assert fields["attributes"] == {
        "gender": int(stock.table.users.gender[5]),
        "age": int(stock.table.users.age[5]),
    }
    assert 119 in fields["seen"]
    assert Profile(stock).hydrate(Query(top=1)) == {}


def test_candidates_have_their_category(stock: Stock) -> None:
    found = ItemColumns(stock).hydrate(Query(top=1), Candidates.build([3, 1]))
    assert found["category"].tolist() == stock.table.items.category[[3, 1]].tolist()
