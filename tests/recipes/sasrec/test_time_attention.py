import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.recipes.sasrec.intervals import bin_intervals, count_bins
from tests.recipes.sasrec.recommenders import LENGTH, build, encode_padded, make_batch

BINS = pytest.mark.parametrize("kind", ["linear", "log"])


def bins_of(units: list[float], span: int, kind: str) -> list[int]:
    """The bins of pairs of events that are so many units apart."""
    elapsed = torch.tensor([[0.0, unit] for unit in units], dtype=torch.float64)
    return bin_intervals(elapsed, torch.ones(len(units), dtype=torch.float64), span, kind)[:, 0, 1].tolist()


def test_linear_bins_are_whole_units_up_to_the_span() -> None:
    assert bins_of([0, 0.5, 0.999, 1, 1.5, 2, 9.99, 10, 11, 1e12], 10, "linear") == [0, 0, 0, 1, 1, 2, 9, 10, 10, 10]
    assert count_bins(10, "linear") == 11


def test_log_bins_widen() -> None:
    """The table of the docstring."""
    assert bins_of([0, 1, 7, 8, 15, 16, 17, 18, 31, 32, 35, 36, 63, 64, 71, 72], 10**6, "log") == [
        *(0, 1, 7, 8, 15, 16, 16, 17, 23, 24, 24, 25, 31, 32, 32, 33)
    ]


@pytest.mark.parametrize("span", [1, 5, 8, 16, 100, 256, 100_000])
def test_every_log_bin_is_in_use(span: int) -> None:
    bins = bins_of([*range(span + 1), 10.0 * span], span, "log")
    assert sorted(set(bins)) == list(range(count_bins(span, "log")))
    assert bins == sorted(bins)
    assert bins[-1] == bins[-2]


def test_the_example_of_the_docstring() -> None:
    elapsed = torch.tensor([[0.0, 90.0, 90.0, 400.0]], dtype=torch.float64)
    bins = bin_intervals(elapsed, torch.tensor([60.0], dtype=torch.float64), 256, "linear")
    assert bins[0, 3].tolist() == [6, 5, 5, 0]
    assert torch.equal(bins, bins.transpose(1, 2))


@BINS
def test_events_at_the_same_moment_are_in_bin_zero(kind: str) -> None:
    elapsed = torch.tensor([[50.0, 50.0, 50.0]], dtype=torch.float64)
    assert not bin_intervals(elapsed, torch.tensor([1e-3], dtype=torch.float64), 256, kind).any()


@BINS
def test_rows_have_their_own_scale(kind: str) -> None:
    elapsed = torch.tensor([[0.0, 600.0], [0.0, 600.0]], dtype=torch.float64)
    bins = bin_intervals(elapsed, torch.tensor([100.0, 200.0], dtype=torch.float64), 256, kind)
    assert bins[:, 0, 1].tolist() == [6, 3]


@BINS
@pytest.mark.parametrize("mhc", [False, True])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@torch.no_grad()
def test_when_it_all_began_changes_nothing(kind: str, mhc: bool, positions: str) -> None:
    """Bit for bit, also with 56 years of seconds added."""
    model, batch = build(time=True, mhc=mhc, positions=positions, time_bins=kind), make_batch()
    shifted = batch | {"elapsed": batch["elapsed"] + 1_767_225_600.0}
    assert torch.equal(encode_padded(model, shifted), encode_padded(model, batch))


@BINS
@pytest.mark.parametrize("mhc", [False, True])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@torch.no_grad()
def test_one_interval_changes_what_follows_it(kind: str, mhc: bool, positions: str) -> None:
    model, batch = build(time=True, mhc=mhc, positions=positions, time_bins=kind), make_batch((LENGTH,))
    changed = batch | {"elapsed": batch["elapsed"].clone()}
    changed["elapsed"][:, 6:] += 3 * batch["scale"][0]
    before, after = encode_padded(model, batch), encode_padded(model, changed)
    torch.testing.assert_close(after[:, :6], before[:, :6], rtol=0, atol=1e-6)
    assert (after[:, 6:] - before[:, 6:]).abs().amax(-1).min() > 1e-3


def turn(states: list[list[float]]) -> list[list[float]]:
    """Each position's two heads of width 2, turned by the position."""
    return [
        [
            *(a * math.cos(position) - b * math.sin(position), b * math.cos(position) + a * math.sin(position)),
            *(c * math.cos(position) - d * math.sin(position), d * math.cos(position) + c * math.sin(position)),
        ]
        for position, (a, b, c, d) in enumerate(states)
    ]


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@torch.no_grad()
def test_four_items_by_hand(positions: str) -> None:
    """One row, two heads of width 2, in loops and in plain numbers; two of the four events are at the same moment.

    Everything between all pairs is written out here, which is what the model never does.
    """
    model = build(time=True, positions=positions, blocks=1, heads=2, width=4, time_span=3).double()
    attention, tables = model.blocks[0].attention, model.relation_tables
    hidden = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    batch = {
        "items": torch.ones(1, 4, dtype=torch.int64),
        "elapsed": torch.tensor([[0.0, 100.0, 100.0, 450.0]], dtype=torch.float64),
        "scale": torch.tensor([50.0], dtype=torch.float64),
    }
    frame = model._build_frame(batch)
    bins = [
        [0, 2, 2, 3],
        [2, 0, 0, 3],
        [2, 0, 0, 3],
        [3, 3, 3, 0],
    ]  # 100 s are 2 units, 350 and 450 s more than the span
    assert frame.relations.bins_BLL[0].tolist() == bins

    projected = hidden @ attention.project_in.weight.T + attention.project_in.bias
    query, key, value = (part.tolist() for part in projected.split(4, dim=1))
    interval_key = tables.interval_key_embedding.weight.tolist()
    interval_value = tables.interval_value_embedding.weight.tolist()
    position_key = position_value = [[0.0] * 4] * 4
    turned_query, turned_key = query, key
    if positions == "learned":
        position_key = tables.position_key_embedding.weight.tolist()
        position_value = tables.position_value_embedding.weight.tolist()
    else:
        turned_query, turned_key = turn(query), turn(key)
    mixed = [[0.0] * 4 for _ in range(4)]
    for columns in ((0, 1), (2, 3)):
        for i in range(4):
            logits = [
                sum(
                    turned_query[i][c] * (turned_key[j][c] + position_key[j][c])
                    + query[i][c] * interval_key[bins[i][j]][c]
                    for c in columns
                )
                / math.sqrt(2)
                for j in range(i + 1)
            ]
            exponentials = [math.exp(logit) for logit in logits]
            for j, exponential in enumerate(exponentials):
                for c in columns:
                    told = value[j][c] + position_value[j][c] + interval_value[bins[i][j]][c]
                    mixed[i][c] += exponential / sum(exponentials) * told
    expected = torch.tensor(mixed, dtype=torch.float64) @ attention.project_out.weight.T + attention.project_out.bias
    # The softmax itself is in fp32, and so is turning.
    torch.testing.assert_close(attention(hidden, frame), expected, rtol=0, atol=1e-6)


class _Largest(TorchDispatchMode):
    """Keeps the size of the largest tensor that anything returned."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, torch.Tensor):
                self.numel = max(self.numel, value.numel())
        return result


def test_pairs_never_meet_the_whole_width() -> None:
    rows, width = 2, 64
    model = build(time=True, width=width, heads=2, time_span=8)
    batch = make_batch((LENGTH,) * rows)
    with _Largest() as largest:
        model.encode(batch)[0].sum().backward()
    assert LENGTH * 4 * width * rows <= largest.numel < rows * LENGTH * LENGTH * width


def test_all_blocks_share_the_tables() -> None:
    names = [name for name, _ in build(time=True, blocks=3).named_parameters()]
    assert sum("interval" in name for name in names) == 2
    assert sum("position" in name for name in names) == 2
    names = [name for name, _ in build(time=True, positions="rotary").named_parameters()]
    assert not any("position" in name for name in names)
