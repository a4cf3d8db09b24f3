"""The ranker and exact retrieval on a GPU: isolated candidates bit for bit at the shipped shape, and the same best items as on the CPU."""

from __future__ import annotations

import pytest
import torch

from paceline.recipes.tenrec.ranker import Ranker
from paceline.recipes.tenrec.top_k import find_best
from tests.recipes.tenrec.models import SIZES, build_model, draw_batch, stir

pytestmark = pytest.mark.gpu
SHIPPED = {"width": 512, "layers": 12, "heads": 8}


@pytest.mark.parametrize("mixer", ["transformer", "fastformer"])
@pytest.mark.parametrize("is_bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("rows", "candidates"), [(1, 17), (32, 128), (1, 1000)])
def test_candidates_are_isolated_bit_for_bit(mixer: str, is_bf16: bool, rows: int, candidates: int) -> None:
    torch.manual_seed(0)
    model = Ranker(SIZES, build_model(mixer=mixer, **SHIPPED)).eval().cuda()
    batch = {name: values.cuda() for name, values in draw_batch(rows, candidates).items()}
    others = {name: values.cuda() for name, values in draw_batch(rows, candidates, seed=1).items()}
    order, kept = torch.randperm(candidates).cuda(), candidates // 2
    moved, replaced = dict(batch), dict(batch)
    for name in ("candidates", "categories"):
        moved[name] = batch[name][:, order]
        replaced[name] = others[name].clone()
        replaced[name][:, kept] = batch[name][:, kept]
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=is_bf16):
        scores = model(batch)
        assert torch.equal(scores[:, order], model(moved))
        assert torch.equal(scores[:, kept], model(replaced)[:, kept])


def test_the_best_of_a_catalogue_are_those_of_the_cpu() -> None:
    """Whole numbers, so that no order of additions matters: also which of equal ones comes first."""
    generator = torch.Generator().manual_seed(0)
    users, items = (torch.randint(-3, 4, (count, 16), generator=generator).float() for count in (300, 100_000))
    for ours, theirs in zip(find_best(users.cuda(), items.cuda(), 100), find_best(users, items, 100), strict=True):
        assert torch.equal(ours.cpu(), theirs)


def test_a_step_of_the_ranker_is_that_of_the_cpu() -> None:
    model = stir(Ranker(SIZES, build_model()))
    batch = draw_batch(8, 20)
    with torch.no_grad():
        expected = model(batch)
        found = model.cuda()({name: values.cuda() for name, values in batch.items()})
    torch.testing.assert_close(found.cpu(), expected, atol=2e-2, rtol=2e-2)
