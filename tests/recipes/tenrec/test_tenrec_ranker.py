"""The ranker: candidates that neither see each other nor know their place, and what its two mixers compute."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from paceline.recipes.tenrec.mixers import Attention, Fastformer
from paceline.recipes.tenrec.ranker import LIST, Ranker
from tests.recipes.tenrec.models import SIZES, build_model, draw_batch, stir

pytestmark = pytest.mark.timeout(60)
MIXERS = ("transformer", "fastformer")


def build(mixer: str, **fields: object) -> Ranker:
    torch.manual_seed(0)
    model = stir(Ranker(SIZES, build_model(mixer=mixer, **fields)))
    assert isinstance(model, Ranker)
    return model


def reorder(batch: dict[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    return batch | {name: batch[name][:, order] for name in ("candidates", "categories")}


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("is_bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("rows", "candidates"), [(1, 2), (5, 17), (3, 128), (1, 1000)])
def test_permuting_candidates_permutes_scores_bit_for_bit(
    mixer: str, is_bf16: bool, rows: int, candidates: int
) -> None:
    model, batch = build(mixer), draw_batch(rows, candidates)
    order = torch.randperm(candidates, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        scores, reordered = model(batch), model(reorder(batch, order))
    assert torch.equal(scores[:, order], reordered)
    assert len(scores[0, :, LIST].unique()) > 1 or candidates == 1


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("is_bf16", [False, True], ids=["fp32", "bf16"])
def test_replacing_the_other_candidates_changes_nothing(mixer: str, is_bf16: bool) -> None:
    model, batch, others = build(mixer), draw_batch(4, 50), draw_batch(4, 50, seed=9)
    kept = 13
    replaced = batch | {name: others[name].clone() for name in ("candidates", "categories")}
    for name in ("candidates", "categories"):
        replaced[name][:, kept] = batch[name][:, kept]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        scores, alone = model(batch), model(replaced)
    assert torch.equal(scores[:, kept], alone[:, kept])
    assert not torch.equal(scores[:, kept + 1], alone[:, kept + 1])


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_candidate_in_a_list_scores_as_it_does_alone(mixer: str) -> None:
    model, batch = build(mixer), draw_batch(6, 9)
    with torch.no_grad():
        together = model(batch)
        alone = torch.cat([model(reorder(batch, torch.tensor([place]))) for place in range(9)], 1)
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mixer", MIXERS)
def test_scores_depend_on_all_that_they_should(mixer: str) -> None:
    """On every item of the history and its place, on gender, age, categories; on no place without an item."""
    model, batch = build(mixer), draw_batch(2, 3)
    batch["history"][:, :7], batch["history"][:, 7:] = torch.arange(1, 8), 0
    with torch.no_grad():
        scores = model(batch)
        changes = {
            "the first item": batch | {"history": batch["history"].index_fill(1, torch.tensor([0]), 99)},
            "their order": batch | {"history": batch["history"][:, [1, 0, *range(2, 10)]]},
            "gender": batch | {"genders": (batch["genders"] + 1) % SIZES.genders},
            "age": batch | {"ages": (batch["ages"] + 1) % SIZES.ages},
            "its category": batch | {"history_categories": (batch["history_categories"] + 1) % SIZES.categories},
            "the candidate's": batch | {"categories": (batch["categories"] + 1) % SIZES.categories},
        }
        for name, changed in changes.items():
            assert (model(changed) - scores).abs().max() > 1e-3, name
        nowhere = batch["history_categories"].clone()
        nowhere[:, 7:] += 1
        assert torch.equal(model(batch | {"history_categories": nowhere % SIZES.categories}), scores)
        nobody = batch | {"history": torch.zeros_like(batch["history"])}
        assert torch.isfinite(model(nobody)).all()


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_parameter_learns(mixer: str) -> None:
    model = build(mixer).train()
    model(draw_batch(64, 20)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_hashed_items_have_fewer_rows() -> None:
    model = build("transformer", hash_rows=50)
    assert model.items.item_embedding.weight.shape == (50, 32)
    assert torch.isfinite(model(draw_batch(2, 5))).all()


def draw_heads(length: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    query, key, value = torch.randn(3, 2, 4, length, 8, generator=generator, dtype=torch.float64)
    return query, key, value


def attend_plainly(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Tensor:
    scores = (query @ key.transpose(-2, -1) / math.sqrt(8)).masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ value


def fast_plainly(mixer: Fastformer, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Tensor:
    """As the paper has it, of one whole sequence."""
    alpha = ((query * mixer.query_weights).sum(-1) / math.sqrt(8)).masked_fill(hidden, -math.inf).softmax(-1)
    global_query = (alpha[..., None] * query).sum(-2, keepdim=True)
    products = global_query * key
    beta = ((products * mixer.key_weights).sum(-1) / math.sqrt(8)).masked_fill(hidden, -math.inf).softmax(-1)
    return (beta[..., None] * products).sum(-2, keepdim=True) * value


@pytest.mark.parametrize("kind", MIXERS)
def test_mixers_compute_what_the_sequence_of_context_and_candidate_would(kind: str) -> None:
    """Against whole sequences, one per candidate, in float64; the last two entries of the context are not there."""
    num_context, num_candidates = 5, 4
    query, key, value = draw_heads(num_context + num_candidates)
    mixer = Attention() if kind == "transformer" else Fastformer(4, 8).double()
    is_hidden = torch.tensor([False, False, False, True, True])
    bias = torch.zeros(2, 1, 1, num_context, dtype=torch.float64).masked_fill(is_hidden, -math.inf)

    def plain(chosen: list[int], hidden: Tensor) -> Tensor:
        parts = [each[:, :, chosen] for each in (query, key, value)]
        return attend_plainly(*parts, hidden) if kind == "transformer" else fast_plainly(mixer, *parts, hidden)  # type: ignore[arg-type]

    with torch.no_grad():
        mixed = mixer(query, key, value, num_context, bias)
        context = list(range(num_context))
        torch.testing.assert_close(mixed[:, :, :num_context], plain(context, is_hidden), atol=1e-6, rtol=1e-5)
        for place in range(num_context, num_context + num_candidates):
            expected = plain([*context, place], torch.cat((is_hidden, torch.tensor([False]))))[:, :, -1]
            torch.testing.assert_close(mixed[:, :, place], expected, atol=1e-6, rtol=1e-5)
