from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import UsageError
from paceline.serving.candidates import Candidates, join
from paceline.serving.query import Query


def test_rows_are_taken_by_mask_and_by_number() -> None:
    found = Candidates.build([5, 6, 7], category=[1, 2, 3], actions=np.arange(6).reshape(3, 2))
    assert found.score.tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    assert found.take(np.array([True, False, True])).item.tolist() == [5, 7]
    turned = found.take(np.array([2, 0]))
    assert turned.columns["actions"].tolist() == [[4, 5], [0, 1]]
    assert turned.get("author") is None


def test_joined_are_the_columns_that_all_have() -> None:
    both = join([Candidates.build([1], category=[4]), Candidates.build([2, 1], author=[9, 9])])
    assert both.item.tolist() == [1, 2, 1]
    assert set(both.columns) == {"item", "score"}
    assert len(join([])) == 0


def test_joined_rows_of_words_are_filled_up() -> None:
    first, second = Candidates.build([1], words=[[4]], age_s=[3]), Candidates.build([2], words=[[5, 6]], age_s=[[7]])
    both = join([first, second])
    assert both.columns["words"].tolist() == [[4, 0], [5, 6]]
    assert both.get("age_s") is None


@pytest.mark.parametrize("items", [[-1], [1 << 32], [[1, 2]]])
def test_items_are_numbers_of_the_data(items: list) -> None:
    with pytest.raises(ValueError, match="from 0 to below"):
        Candidates.build(items)


def test_columns_have_one_length() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        Candidates.build([1, 2], category=[1])


@pytest.mark.parametrize("top", [0, -3])
def test_so_many_cannot_be_shown(top: int) -> None:
    with pytest.raises(UsageError, match=f"{top} items"):
        Query(top=top)
