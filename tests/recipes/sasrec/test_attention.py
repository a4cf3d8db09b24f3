import math

import pytest
import torch
from torch.nn import functional as F

from paceline.engine.attend import attend_by_flex, attend_by_sdpa, attend_eagerly
from paceline.recipes.sasrec.frame import Frame
from paceline.recipes.sasrec.rotary import build_rotation, rotate
from tests.recipes.sasrec.recommenders import build, encode_padded, make_batch


@torch.no_grad()
def test_the_attention_of_one_head_is_the_textbooks() -> None:
    """Against float64 loops that share no code with the model."""
    attention = build(blocks=1, heads=1, width=4).double().blocks[0].attention
    hidden = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    query, key, value = (hidden @ attention.project_in.weight.T + attention.project_in.bias).split(4, dim=1)
    rows = []
    for position in range(5):
        scores = [(query[position] @ key[other]).item() / 2.0 for other in range(position + 1)]
        weights = torch.tensor([math.exp(score) for score in scores], dtype=torch.float64)
        weights = weights / weights.sum()
        rows.append(sum(weights[other] * value[other] for other in range(position + 1)))
    expected = torch.stack(rows) @ attention.project_out.weight.T + attention.project_out.bias
    torch.testing.assert_close(attention(hidden, Frame(1, 5)), expected, rtol=1e-12, atol=1e-12)


# On a CPU flex attention is not compiled, and says that this is slow.
UNCOMPILED = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@UNCOMPILED
@pytest.mark.parametrize("width", [1, 5, 8, 16, 25, 50])
@torch.no_grad()
def test_all_kernels_agree(width: int) -> None:
    """Also where the width of a head suits no kernel and has to be widened."""
    random = torch.Generator().manual_seed(width)
    query, key, value = (torch.randn(2, 3, 37, width, generator=random) for _ in range(3))
    expected = attend_eagerly(query, key, value, is_causal=True)
    torch.testing.assert_close(attend_by_sdpa(query, key, value, is_causal=True), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(attend_by_flex(query, key, value, is_causal=True), expected, rtol=1e-4, atol=1e-5)


@UNCOMPILED
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@torch.no_grad()
def test_a_model_is_the_same_by_any_kernel(positions: str) -> None:
    batch = make_batch()
    expected = encode_padded(build("eager", positions=positions), batch)
    for kernel in ("sdpa", "flex"):
        torch.testing.assert_close(
            encode_padded(build(kernel, positions=positions), batch), expected, rtol=1e-4, atol=1e-4
        )


def test_dropped_weights_are_made_up_for() -> None:
    """The mean over many drawings is what it is without dropout."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 1, 6, 4) for _ in range(3))
    many = [states.expand(4000, 1, 6, 4) for states in (query, key, value)]
    expected = attend_eagerly(query, key, value, is_causal=True)[0]
    for kernel in (attend_eagerly, attend_by_sdpa):
        dropped = kernel(*many, is_causal=True, dropout=0.4)
        assert dropped.std(0).mean() > 0.1
        torch.testing.assert_close(dropped.mean(0), expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("width", [2, 3, 8, 25])
def test_turned_products_depend_on_distances_alone(width: int) -> None:
    random = torch.Generator().manual_seed(3)
    query, key = (torch.randn(width, generator=random).expand(1, 1, 12, width) for _ in range(2))
    rotation = build_rotation(12, width, torch.device("cpu"))
    products = (rotate(query, rotation) @ rotate(key, rotation).transpose(-2, -1))[0, 0]
    for distance in range(12):
        diagonal = products.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-4)
    assert (products.diagonal(0)[0] - products.diagonal(-1)[0]).abs() > 1e-3
    torch.testing.assert_close(products[0, 0], query[0, 0, 0] @ key[0, 0, 0])


def test_turning_by_hand() -> None:
    """Coordinates 0 and 2 by the position itself, 1 and 3 by a hundredth of it; an odd one stays."""
    states = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).expand(1, 1, 3, 5)
    turned = rotate(states, build_rotation(3, 5, torch.device("cpu")))[0, 0, 2]
    expected = [
        math.cos(2) - 3 * math.sin(2),
        2 * math.cos(0.02) - 4 * math.sin(0.02),
        3 * math.cos(2) + math.sin(2),
        4 * math.cos(0.02) + 2 * math.sin(0.02),
        5.0,
    ]
    torch.testing.assert_close(turned, torch.tensor(expected))


def test_turning_keeps_the_type() -> None:
    states = torch.ones(1, 1, 3, 4, dtype=torch.bfloat16)
    assert rotate(states, build_rotation(3, 4, torch.device("cpu"))).dtype == torch.bfloat16


def test_packing_and_padding() -> None:
    frame = Frame(2, 3, torch.tensor([0, 1, 3]))
    packed = torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    padded = frame.pad(packed)
    assert padded.tolist() == [[[1.0], [2.0], [0.0]], [[3.0], [0.0], [0.0]]]
    assert torch.equal(frame.pack(padded), packed)
    (frame.pack(padded) * torch.tensor([[1.0], [10.0], [100.0]])).sum().backward()
    assert packed.grad.tolist() == [[1.0], [10.0], [100.0]]


def test_eager_weights_do_not_overflow_in_half_precision() -> None:
    query = torch.full((1, 1, 4, 8), 60.0, dtype=torch.bfloat16)
    value = torch.randn(1, 1, 4, 8, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    assert attend_eagerly(query, query, value, is_causal=True).isfinite().all()
    assert (
        F.cosine_similarity(attend_eagerly(query, query, value, is_causal=True)[0, 0, 0], value[0, 0, 0], dim=0) > 0.99
    )
