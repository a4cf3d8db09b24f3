import copy
import itertools

import pytest
import torch
from torch import nn

from paceline.recipes.sasrec import groups
from paceline.recipes.sasrec import recommender as module
from paceline.recipes.sasrec.block import hidden_width
from paceline.recipes.sasrec.config import Model
from paceline.recipes.sasrec.recommender import Recommender
from tests.recipes.sasrec.recommenders import LENGTH, NUM_ITEMS, VARIANTS, FullLoss, build, encode_padded, make_batch

SHAPES = [
    {"norm": norm, "positions": positions}
    for norm, positions in itertools.product(("pre", "post"), ("learned", "rotary"))
]


def name_of(changes: dict[str, object]) -> str:
    return "-".join(
        [
            "tisasrec" if changes.get("time") else "sasrec",
            *(["mhc"] if changes.get("mhc") else []),
            *(str(value) for key, value in changes.items() if key not in ("time", "mhc")),
        ]
    )


VARIANT = pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
EVERY_SHAPE = pytest.mark.parametrize(
    "variant", [variant | shape for variant in VARIANTS for shape in SHAPES], ids=name_of
)


@EVERY_SHAPE
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@torch.no_grad()
def test_the_future_does_not_change_the_past(variant: dict[str, object], attention: str) -> None:
    model = build(attention, **variant)
    batch = make_batch((LENGTH, LENGTH, LENGTH))
    changed = batch | {"items": batch["items"].clone(), "elapsed": batch["elapsed"].clone()}
    changed["items"][:, 7:] = changed["items"][:, 7:] % NUM_ITEMS + 1
    changed["elapsed"][:, 7:] = changed["elapsed"][:, 7:] * 3 + 1000
    before, after = encode_padded(model, batch), encode_padded(model, changed)
    torch.testing.assert_close(after[:, :7], before[:, :7], rtol=0, atol=1e-6)
    assert (after[:, 7:] - before[:, 7:]).abs().amax(-1).min() > 1e-2


@VARIANT
@torch.no_grad()
def test_the_past_matters(variant: dict[str, object]) -> None:
    model, batch = build(**variant), make_batch((LENGTH, LENGTH))
    changed = batch | {"items": batch["items"].clone()}
    changed["items"][:, 0] = changed["items"][:, 0] % NUM_ITEMS + 1
    assert (encode_padded(model, changed)[:, -1] - encode_padded(model, batch)[:, -1]).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@VARIANT
@torch.no_grad()
def test_the_order_matters(variant: dict[str, object], positions: str) -> None:
    """Of the items before the last one, all at the same moment: nothing but positions could tell."""
    model, batch = build(positions=positions, **variant), make_batch((LENGTH,))
    batch["elapsed"] = torch.zeros_like(batch["elapsed"])
    changed = batch | {"items": batch["items"].clone()}
    changed["items"][:, :5] = changed["items"][:, :5].flip(1)
    assert (encode_padded(model, changed)[:, -1] - encode_padded(model, batch)[:, -1]).abs().max() > 1e-3


@EVERY_SHAPE
@torch.no_grad()
def test_packed_rows_are_what_each_is_alone(variant: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the three rows go together or in two groups."""
    monkeypatch.setattr(groups, "ROWS", 2)
    model, batch = build(**variant), make_batch()
    hidden, places = model.encode(batch)
    assert places is not None
    assert len(hidden) == int(batch["lengths"].sum())
    together = encode_padded(model, batch)
    for row, length in enumerate(batch["lengths"].tolist()):
        alone = {name: values[row : row + 1] for name, values in batch.items()}
        alone |= {name: alone[name][:, :length] for name in ("items", "targets", "elapsed")}
        torch.testing.assert_close(together[row, :length], encode_padded(model, alone)[0], rtol=1e-4, atol=1e-5)
        assert not together[row, length:].any()


@EVERY_SHAPE
def test_packed_equals_dense(variant: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU computes, with every padding position, gives the same loss and the same gradients."""
    model, batch = build(**variant), make_batch()
    results = []
    for dense in (False, True):
        if dense:
            monkeypatch.setattr(module, "find_groups", lambda items, **_: None)
        model.zero_grad()
        loss = model(batch)
        loss.backward()
        results.append((loss, [parameter.grad.clone() for parameter in model.parameters()], model.last_hidden(batch)))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)


@VARIANT
@torch.no_grad()
def test_nobody_looks_at_padding(variant: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_groups", lambda items, **_: None)
    model, batch = build(**variant), make_batch()
    is_real = batch["items"] > 0
    before = encode_padded(model, batch)[is_real]
    model.item_embedding.weight[0] = 100.0
    torch.testing.assert_close(encode_padded(model, batch)[is_real], before, rtol=1e-5, atol=1e-5)


@VARIANT
@torch.no_grad()
def test_the_last_hidden_state_is_that_of_the_last_item(variant: dict[str, object]) -> None:
    model, batch = build(**variant), make_batch((5, LENGTH, 1))
    expected = encode_padded(model, batch)[torch.arange(3), batch["lengths"] - 1]
    last = model.last_hidden(batch)
    assert last.dtype == torch.float32
    torch.testing.assert_close(last, expected, rtol=0, atol=0)


@VARIANT
def test_a_rank_without_samples_runs_every_layer(variant: dict[str, object]) -> None:
    model = build(**variant).train()
    batch = make_batch((1,))
    batch |= {name: torch.zeros_like(batch[name]) for name in ("items", "targets", "elapsed")}
    loss = model(batch)
    loss.backward()
    assert loss == 0
    assert len(model.encode(batch)[0]) == 1
    assert all(value == value for value in model.observe().values())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@EVERY_SHAPE
def test_gradients_reach_every_parameter(variant: dict[str, object]) -> None:
    """At the very start, too; a bias of keys adds the same to all of a query's scores, so for it there is nothing to learn."""
    model = build(shake=0.0, activation="swiglu", **variant).train()
    model(make_batch()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize(
    "variant",
    [variant | {"mhc_fp32": fp32} for variant in VARIANTS for fp32 in ((True, False) if variant["mhc"] else (True,))],
    ids=name_of,
)
def test_bf16_autocast(variant: dict[str, object]) -> None:
    model, batch = build(shake=0.05, **variant), make_batch()
    exact = model(batch)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(batch)
        last = model.last_hidden(batch)
    loss.backward()
    assert (loss.dtype, last.dtype) == (torch.float32, torch.float32)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    torch.testing.assert_close(loss, exact, rtol=0.02, atol=0)


@VARIANT
@torch.no_grad()
def test_dropout_only_in_training(variant: dict[str, object]) -> None:
    model, batch = build(**variant), make_batch()
    assert torch.equal(model(batch), model(batch))
    model.train()
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(model(batch))
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("time", [False, True])
@torch.no_grad()
def test_attention_dropout_only_in_training(attention: str, time: bool) -> None:
    model, batch = build(attention, time=time, dropout=0.0, attention_dropout=0.5), make_batch()
    assert torch.equal(model(batch), model(batch))
    model.train()
    torch.manual_seed(1)
    assert not torch.equal(model(batch), model(batch))


@VARIANT
def test_learning_lowers_the_loss(variant: dict[str, object]) -> None:
    model, batch = build(shake=0.0, dropout=0.0, **variant).train(), make_batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(15):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_the_padding_row_stays_zero() -> None:
    model = build(shake=0.0, dropout=0.0)
    assert not model.item_embedding.weight[0].any()
    model(make_batch()).backward()
    assert not model.item_embedding.weight.grad[0].any()
    assert model.item_embedding.weight.grad[1:].any(dim=1).all()


@torch.no_grad()
def test_cosine_scores_do_not_see_lengths() -> None:
    model, batch = build(scores="cosine", temperature=0.1), make_batch()
    hidden, _ = model.encode(batch)
    torch.testing.assert_close(hidden.norm(dim=1), torch.full((len(hidden),), 10.0))
    torch.testing.assert_close(model.item_weights()[1:].norm(dim=1), torch.ones(NUM_ITEMS))
    assert not model.item_weights()[0].any()
    plain = build(temperature=0.1)
    plain_hidden, _ = plain.encode(batch)
    cosine = torch.nn.functional.cosine_similarity(plain_hidden[:, None], plain.item_weights()[None, 1:], dim=2)
    torch.testing.assert_close(hidden @ model.item_weights()[1:].T, cosine / 0.1, rtol=1e-4, atol=1e-4)


def test_cosine_scores_leave_padding_without_gradient() -> None:
    model = build(scores="cosine", dropout=0.0)
    model(make_batch()).backward()
    assert not model.item_embedding.weight.grad[0].any()
    assert model.item_embedding.weight.grad.isfinite().all()


class Recording(nn.Module):
    """A loss that keeps what it was called with."""

    def forward(self, *arguments: torch.Tensor | None) -> torch.Tensor:
        self.arguments = arguments
        return arguments[0].float().sum() + arguments[1].sum()


def test_the_loss_gets_what_belongs_to_each_position() -> None:
    """Each position has the key it would have in a batch of its own, whatever is packed around it."""
    loss, batch = Recording(), make_batch()
    model = build(loss=loss)
    batch |= {"keys": torch.tensor([11, 22, 33]), "negatives": torch.tensor([4, 5])}
    model(batch)
    hidden, weights, targets, keys, negatives = loss.arguments
    assert len(hidden) == len(targets) == len(keys) == int(batch["lengths"].sum())
    _, places = model.encode(batch)
    assert torch.equal(targets, batch["targets"].flatten()[places])
    assert sorted(places.tolist()) == batch["items"].flatten().nonzero().squeeze(1).tolist()
    assert torch.equal(negatives, batch["negatives"])
    assert weights.shape == (NUM_ITEMS + 1, 16)
    model({name: values[2:] for name, values in batch.items() if name != "negatives"})
    assert torch.equal(loss.arguments[3], keys[places >= 2 * LENGTH])
    assert loss.arguments[4] is None
    model({name: values for name, values in batch.items() if name not in ("keys", "negatives")})
    assert loss.arguments[3] is None


@VARIANT
def test_names_and_values_make_the_same_model(variant: dict[str, object]) -> None:
    """What a checkpoint keeps is all there is: no storage under two names, nothing in buffers."""
    model, batch = build(**variant), make_batch()
    kept = model.state_dict()
    assert set(kept) == {name for name, _ in model.named_parameters()}
    other = copy.deepcopy(build(shake=1.0, **variant))
    other.load_state_dict(kept)
    assert torch.equal(model(batch), other(batch))
    assert not list(model.buffers())


def test_a_model_can_be_built_without_storage() -> None:
    with torch.device("meta"):
        model = Recommender(NUM_ITEMS, LENGTH, Model(time=True, mhc=True, time_bins="log"), FullLoss(), "sdpa")
    assert sum(parameter.numel() for parameter in model.parameters()) > 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 256),
        ({"activation": "relu"}, 256),
        ({"activation": "swiglu"}, 176),  # 2/3 of 256 is 170.7
        ({"activation": "swiglu", "width": 48, "heads": 2}, 128),
        ({"activation": "swiglu", "feed_forward": 100}, 100),
        ({"feed_forward": 100}, 100),
    ],
)
def test_the_hidden_width(changes: dict[str, object], expected: int) -> None:
    assert hidden_width(Model(**changes)) == expected


def test_without_streams_there_is_nothing_to_observe() -> None:
    assert build().observe() == {}


@VARIANT
def test_blocks_are_called_once_where_ranks_have_to_call_them_evenly(
    variant: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training, and with the same loss; an evaluation does as ever."""
    monkeypatch.setattr(groups, "ROWS", 2)
    model, batch = build(**variant).train(), make_batch()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    calls: list[bool] = []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(model.training))
    expected = model(batch)
    assert len(calls) == 2
    model._needs_even_calls = True
    torch.testing.assert_close(model(batch), expected, rtol=1e-4, atol=1e-4)
    assert calls == [True, True, True]
    with torch.no_grad():
        model.eval().last_hidden(batch)
    assert calls[3:] == [False, False]
