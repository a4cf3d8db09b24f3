"""A GPU that is not there, as far as choosing goes: nothing can be computed on it."""

from __future__ import annotations

import pytest
import torch

from paceline.recipes.nsa import paths


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> None:
    """One of this compute capability, with Triton."""
    monkeypatch.setattr(paths, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
