"""Kernels for Hopper, run on a CPU: their own sources, by a language that simulates the GPU (language.py).

    with simulate(seed=0) as launched:
        read_blocks(q, k, v, work, parts, parts_lse, 0, 64)          # gather_attention.py launches them as it always does

`launched` has the names of those that were. Triton need not be installed. Programs run one after another, each with its groups of warps by turns.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.hopper import language

KERNELS = ("gather_kernels", "gather_gradient_kernels", "key_gradient_kernels")
"""of paceline.recipes.nsa.kernels: they are imported anew, so that they speak the simulated language"""


class Kernel:
    """A function of the language: called by others as it is, or launched."""

    def __init__(self, function: Callable[..., Any], seed: int, launched: set[str]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._seed, self._launched = function, seed, launched

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._function(*args, **named)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return functools.partial(self._launch, (*grid, 1, 1)[:3])

    def _launch(self, grid: tuple[int, ...], *args: Any, **named: Any) -> None:
        self._launched.add(self._function.__name__)
        signature = inspect.signature(self._function)
        options = {name for name in named if name not in signature.parameters}
        assert options <= {"num_warps", "maxnreg"}, options
        bound = signature.bind(*args, **{name: value for name, value in named.items() if name not in options})
        given = {
            name: value if "constexpr" in str(signature.parameters[name].annotation) else _hand_over(value)
            for name, value in bound.arguments.items()
        }
        for number, place in enumerate(itertools.product(*(range(size) for size in reversed(grid)))):
            language.NOW.append(language.Program(place[::-1], grid, hash((self._seed, number))))
            try:
                self._function(**given)
                _check_end(language.now())
            finally:
                language.NOW.pop()


def _hand_over(value: Any) -> Any:
    if isinstance(value, Tensor):
        assert value.is_contiguous()
        return language.Pointer(value.detach().view(-1), torch.tensor(0))
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return language.scalar(value)
    return language.scalar(value, torch.float32) if isinstance(value, float) else value


def _check_end(program: language.Program) -> None:
    assert not any(program.stores.values()), "a program ended before its last numbers were written"
    assert not any(program.products.values()), "a product was never waited for"


@contextmanager
def simulate(seed: int) -> Iterator[set[str]]:
    """Within it, launches of these kernels are simulated; `seed` decides who goes first wherever nothing else does."""

    launched: set[str] = set()

    def jit(function: Callable[..., Any] | None = None, **_: Any) -> Any:
        return (lambda each: Kernel(each, seed, launched)) if function is None else Kernel(function, seed, launched)

    hopper = {
        name: getattr(language, name)
        for name in ("fence_async_shared", "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait")
    }
    root = "triton.experimental"
    fakes = {
        root: _module(root, gluon=_module(f"{root}.gluon", jit=jit, language=language.gl)),
        f"{root}.gluon": _module(f"{root}.gluon", jit=jit, language=language.gl),
        f"{root}.gluon.language": _module(f"{root}.gluon.language", **vars(language.gl)),
        f"{root}.gluon.language.nvidia": _module(f"{root}.gluon.language.nvidia"),
        f"{root}.gluon.language.nvidia.hopper": _module(f"{root}.gluon.language.nvidia.hopper", **hopper),
        f"{root}.gluon.nvidia": _module(f"{root}.gluon.nvidia"),
        f"{root}.gluon.nvidia.hopper": _module(f"{root}.gluon.nvidia.hopper", TensorDescriptor=language.TensorDescriptor),
    }  # fmt: skip
    if not find_spec("triton"):
        fakes["triton"] = _module("triton")
    names = [f"paceline.recipes.nsa.kernels.{name}" for name in KERNELS]
    with mock.patch.dict(sys.modules, fakes):
        for name in names:
            sys.modules.pop(name, None)
        for name in names:
            importlib.import_module(name)
        yield launched


def _module(name: str, **content: Any) -> ModuleType:
    """The real one but for this, where there is one: Triton's interpreter, which may run beside, looks at some of it."""
    module = ModuleType(name)
    if find_spec("triton"):
        vars(module).update(vars(importlib.import_module(name)))
    vars(module).update(content)
    return module
