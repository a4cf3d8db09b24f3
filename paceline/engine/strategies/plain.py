"""A plain model beside a sharded one: the same modules without their hooks, with whole weights.

What shards a model listens to every call of its blocks. Whoever calls them in an order of its own, as an evaluation does, or on one rank
more often than on another, needs a model that nobody listens to. Buffers and all else but the weights are shared with the sharded one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

Originals = Mapping[nn.Module, tuple[type[nn.Module], dict[str, Any]]]


def remember(model: nn.Module) -> Originals:
    """Each module's class and hooks; before the model is sharded."""
    return {
        module: (type(module), {name: copy.copy(value) for name, value in vars(module).items() if "hooks" in name})
        for module in model.modules()
    }


def build_plain(model: nn.Module, originals: Originals, whole: Mapping[nn.Parameter, Tensor]) -> nn.Module:
    """The model as it was remembered, each of its weights replaced by the whole one; tied ones stay tied."""
    weights = {parameter: nn.Parameter(values, requires_grad=False) for parameter, values in whole.items()}
    modules: dict[nn.Module, nn.Module] = {}

    def plain(module: nn.Module | None) -> nn.Module | None:
        if module is None or module in modules:
            return None if module is None else modules[module]
        kind, hooks = originals[module]
        twin = modules[module] = object.__new__(kind)
        vars(twin).update(vars(module) | hooks)
        vars(twin).pop("forward", None)  # one that was put into its place calls the sharded module
        vars(twin)["_parameters"] = {
            name: None if value is None else weights[value] for name, value in module._parameters.items()
        }
        vars(twin)["_modules"] = {name: plain(value) for name, value in module._modules.items()}
        return twin

    built = plain(model)
    assert built is not None
    return built
