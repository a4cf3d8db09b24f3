"""Where kernels for Hopper can be launched; what they compute is in simulated_kernels.py and tests/gpu."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from paceline.recipes.nsa.kernels.hopper import has_hopper


def test_only_a_hopper_gpu_with_a_triton_that_knows_its_language_has_its_means(monkeypatch: pytest.MonkeyPatch) -> None:
    ask, gpu = has_hopper.__wrapped__, torch.device("cuda", 0)
    assert not ask(torch.device("cpu"))
    module = "paceline.recipes.nsa.kernels.gather_gradient_kernels"
    monkeypatch.setitem(sys.modules, module, ModuleType(module))
    for capability in ((8, 0), (9, 0), (10, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert ask(gpu) == (capability == (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    # None stands for one that cannot be imported.
    monkeypatch.setitem(sys.modules, module, None)
    assert not ask(gpu)
