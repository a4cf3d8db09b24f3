"""What of it runs without a GPU; tests/gpu has the kernels."""

from __future__ import annotations

import torch

from paceline.recipes.nsa.range_attention import sum_products


def test_sums_of_products_are_exact_inside_autocast_too() -> None:
    """Where backward() is called inside autocast, products of matrices would be those of bf16."""
    random = torch.Generator().manual_seed(0)
    out, grad = (torch.randn(2, 37, 4, 64, generator=random).bfloat16() for _ in range(2))
    expected = torch.einsum("bthd,bthd->bht", out.double(), grad.double())
    with torch.autocast("cpu", torch.bfloat16):
        found = sum_products(out, grad)
    assert (found.dtype, found.shape, found.is_contiguous()) == (torch.float32, (2, 4, 37), True)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
