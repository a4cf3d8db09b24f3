"""Tests that need an NVIDIA GPU; without one each is skipped, and says so."""

from __future__ import annotations

import os

import pytest
import torch

# torch looks for it once in a process, at the first matrix product on a GPU: a later test with deterministic kernels would be refused.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))


@pytest.fixture
def backward_thread() -> None:
    """It must have met the device before its first product, or torch warns, which is an error here."""
    torch.ones(1, device="cuda", requires_grad=True).exp().backward()
