"""A plain model beside a sharded one: the same modules without their hooks, with whole weights.

What shards a model listens to every call of its blocks. Whoever calls them in an order of its own, as an evaluation does, or on one rank
more often than on another, needs a model that nobody listens to. Buffers and all else but the weights are shared with the sharded one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

Originals = Mapping[nn.Module, tuple[type[nn.Module], dict[str, Any]]]


def remember(model: nn.Module) -> Originals:
    """Each module's class and hooks; before the model is sharded."""
    return {
        module: (type(module), {name: copy.copy(value) for name, value in vars(module).items() if "hooks" in name})
        for module in model.modules()
    }


def build_plain(model: nn.Module, originals: Originals, whole: Callable[[Tensor], Tensor]) -> nn.Module:
    """The model as it was remembered, each of its weights replaced by what `whole` makes of it."""
    weights: dict[Tensor, nn.Parameter] = {}
    modules: dict[nn.Module, nn.Module] = {}

    def weight(parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is not None and parameter not in weights:
            weights[parameter] = nn.Parameter(whole(parameter), requires_grad=False)
        return None if parameter is None else weights[parameter]

    def plain(module: nn.Module | None) -> nn.Module | None:
        if module is None or module in modules:
            return None if module is None else modules[module]
        kind, hooks = originals[module]
        twin = modules[module] = object.__new__(kind)
        vars(twin).update(vars(module) | hooks)
        vars(twin)["_parameters"] = {name: weight(value) for name, value in module._parameters.items()}
        vars(twin)["_modules"] = {name: plain(value) for name, value in module._modules.items()}
        return twin

    built = plain(model)
    assert built is not None
    return built
