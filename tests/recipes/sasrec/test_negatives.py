import numpy as np

from paceline.recipes.sasrec.negatives import draw_negatives

SAMPLES = np.repeat(np.arange(500), 20)
POSITIONS = np.tile(np.arange(20), 500)


def draw(answers=1, seed=0, epoch=0, samples=SAMPLES, positions=POSITIONS, count=4, num_items=10):
    return draw_negatives(seed, epoch, samples, positions, np.full(len(samples), answers), count, num_items)


def test_each_depends_on_its_own_key_alone():
    chosen = np.random.default_rng(0).permutation(len(SAMPLES))[:100]
    assert np.array_equal(draw()[chosen], draw(samples=SAMPLES[chosen], positions=POSITIONS[chosen]))
    assert np.array_equal(draw(count=2), draw()[:, :2])


def test_seed_epoch_sample_position_and_number_all_matter():
    base = draw(num_items=1001, count=2)
    for other in (
        draw(num_items=1001, count=2, seed=1),
        draw(num_items=1001, count=2, epoch=1),
        draw(num_items=1001, count=2, samples=SAMPLES + 1),
        draw(num_items=1001, count=2, positions=POSITIONS + 1),
        base[:, ::-1],
    ):
        assert (base == other).mean() < 0.01


def test_uniform_over_all_but_the_answer():
    for answer in (1, 5, 10):
        counts = np.bincount(draw(answer).ravel(), minlength=11)
        assert counts[0] == 0
        assert counts[answer] == 0
        expected = 40_000 / 9
        chi_square = ((np.delete(counts, [0, answer]) - expected) ** 2 / expected).sum()
        assert chi_square < 27  # 8 degrees of freedom: 0.1 % of fair draws are above 26.1


def test_two_items_leave_one_choice():
    assert (draw(1, num_items=2) == 2).all()
    assert (draw(2, num_items=2) == 1).all()
