import numpy as np
import pytest
import torch

from paceline.engine.draws import mix, uniform
from paceline.recipes.sasrec import negatives
from paceline.recipes.sasrec.negatives import draw_by, draw_uniform, position_keys

MASK = 2**64 - 1


def mix_by_hand(word):
    word = (word + 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def keys(count=10_000, seed=0):
    return mix(mix(torch.tensor([seed])) ^ torch.arange(count))


def draw(answer=1, count=4, num_items=10, keys_T=None):
    keys_T = keys() if keys_T is None else keys_T
    return draw_uniform(keys_T, count, num_items, torch.full((len(keys_T),), answer))


def chi_square(counts, expected):
    return ((counts - expected) ** 2 / expected).sum()


def test_mix_is_splitmix64():
    words = [0, 1, -1, 2**63 - 1, -(2**63), 1234567890123456789, -987654321]
    words += torch.randint(-(2**62), 2**62, (1000,), generator=torch.Generator().manual_seed(0)).tolist()
    mixed = mix(torch.tensor(words))
    assert [word & MASK for word in mixed.tolist()] == [mix_by_hand(word & MASK) for word in words]
    assert mixed.dtype == torch.int64


def test_mix_leaves_its_argument_alone():
    words = torch.arange(5)
    mix(words)
    assert words.tolist() == [0, 1, 2, 3, 4]


def test_numbers_are_those_of_the_upper_53_bits():
    words = torch.tensor([0, -1, 2**63 - 1, -(2**63), 1 << 11])
    expected = [(word & MASK) >> 11 for word in words.tolist()]
    assert (uniform(words) * 2**53).long().tolist() == expected
    assert uniform(words).max() < 1


def test_draws_by_hand():
    key, num_items, answer = -123456789, 1000, 77
    number = (mix_by_hand((key & MASK) ^ mix_by_hand(3)) >> 11) * 2.0**-53
    drawn = int(number * (num_items - 1)) + 1
    drawn += drawn >= answer
    assert draw_uniform(torch.tensor([key]), 5, num_items, torch.tensor([answer]))[0, 2] == drawn


def test_each_depends_on_its_own_key_alone():
    """Whatever the batch is, however it is split, and however many are drawn."""
    chosen = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))[:100]
    cumulative = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).cumsum(0)
    assert torch.equal(draw()[chosen], draw(keys_T=keys()[chosen]))
    assert torch.equal(draw(count=2), draw()[:, :2])
    assert torch.equal(draw_by(keys(), 4, cumulative)[chosen], draw_by(keys()[chosen], 4, cumulative))
    whole = position_keys(keys(64), 20)
    assert torch.equal(whole, torch.cat([position_keys(part, 20) for part in keys(64).split(7)]))
    assert torch.equal(whole[:, :5], position_keys(keys(64), 5))


def test_key_position_and_number_all_matter():
    keys_T = position_keys(keys(500), 20)
    base = draw(num_items=1001, count=2, keys_T=keys_T.flatten())
    for other in (
        draw(num_items=1001, count=2, keys_T=position_keys(keys(500, seed=1), 20).flatten()),
        draw(num_items=1001, count=2, keys_T=keys_T.roll(1, 0).flatten()),
        draw(num_items=1001, count=2, keys_T=keys_T.roll(1, 1).flatten()),
        base.flip(1),
    ):
        assert (base == other).double().mean() < 0.01


@pytest.mark.parametrize("answer", [1, 5, 10])
def test_uniform_over_all_but_the_answer(answer):
    counts = np.bincount(draw(answer).flatten().numpy(), minlength=11)
    assert counts[0] == 0
    assert counts[answer] == 0
    # 8 degrees of freedom: 0.1 % of fair draws are above 26.1.
    assert chi_square(np.delete(counts, [0, answer]), 40_000 / 9) < 26.1


def test_two_items_leave_one_choice():
    assert (draw(1, num_items=2) == 2).all()
    assert (draw(2, num_items=2) == 1).all()


def test_drawn_as_often_as_the_frequencies_say():
    frequencies = torch.tensor([0, 5, 0, 1, 3, 0, 1, 0], dtype=torch.float64)
    drawn = draw_by(keys(), 4, frequencies.cumsum(0))
    counts = np.bincount(drawn.flatten().numpy(), minlength=9)[1:]
    assert counts[frequencies.numpy() == 0].tolist() == [0, 0, 0, 0]
    present = frequencies.numpy() > 0
    # 3 degrees of freedom: 0.1 % of fair draws are above 16.3.
    assert chi_square(counts[present], 40_000 * frequencies.numpy()[present] / 10) < 16.3


def test_the_ends_of_the_range_are_drawable_items(monkeypatch):
    numbers = torch.tensor([[0.0, 0.3, 1 - 2.0**-53]], dtype=torch.float64)
    monkeypatch.setattr(negatives, "uniform", lambda _: numbers.clone())
    cumulative = torch.tensor([0, 0.3, 0.3, 1, 1], dtype=torch.float64)
    assert draw_by(torch.tensor([0]), 3, cumulative).tolist() == [[2, 4, 4]]
    assert draw_by(torch.tensor([0]), 3, cumulative * 0.7).tolist()[0][::2] == [2, 4]
    assert draw_uniform(torch.tensor([0]), 3, 10, torch.tensor([10])).tolist() == [[1, 3, 9]]
