"""Gluon, as far as our kernels speak it, on a CPU: what `gl`, `mbarrier`, `tma` and the matrix units' functions are in a simulated program.

Numbers are tensors of torch, pointers are places in one, layouts mean nothing: the real compiler checks those (test_gather_kernels.py). What is
simulated is what a compiler does not see: groups of warps side by side, barriers, copies that arrive late, products that are waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.hopper.shared_memory import Barrier, Storage, View
from tests.hopper.turns import Turns


class Program:
    """What one simulated program has; kernels reach it through `NOW`, as on a GPU."""

    def __init__(self, place: tuple[int, ...], grid: tuple[int, ...], seed: int) -> None:
        self.place, self.grid, self.turns = place, grid, Turns(seed)
        self.products: dict[str, list[Product]] = {}
        self.stores: dict[str, list[View]] = {}
        self.storages: list[Storage] = []
        self.num_barriers = 0


NOW: list[Program] = []
"""the one that runs"""


def now() -> Program:
    return NOW[-1]


def scalar(value: float, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(value, dtype=dtype)


# Pointers and ordinary memory


@dataclass(frozen=True)
class Pointer:
    base: Tensor
    offset: Tensor

    @property
    def dtype(self) -> SimpleNamespace:
        return SimpleNamespace(element_ty=self.base.dtype)

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.base, self.offset + torch.as_tensor(offset).long())


def _places(pointer: Pointer, mask: Any) -> tuple[Tensor, Tensor]:
    offset = pointer.offset
    is_there = torch.ones_like(offset, dtype=torch.bool)
    if mask is not None:
        offset, is_there = torch.broadcast_tensors(offset, torch.as_tensor(mask))
    asked = offset[is_there]
    assert ((asked >= 0) & (asked < pointer.base.numel())).all(), "beyond its tensor"
    return offset, is_there


def load(pointer: Pointer, mask: Any = None, other: Any = 0) -> Tensor:
    offset, is_there = _places(pointer, mask)
    found = torch.full(offset.shape, other, dtype=pointer.base.dtype)
    found[is_there] = pointer.base[offset[is_there]]
    return found


def store(pointer: Pointer, value: Tensor, mask: Any = None) -> None:
    offset, is_there = _places(pointer, mask)
    assert value.dtype == pointer.base.dtype, f"{value.dtype} into {pointer.base.dtype}"
    value, _ = torch.broadcast_tensors(value, offset)
    pointer.base[offset[is_there]] = value[is_there]


# The copy engine


@dataclass(frozen=True)
class TensorDescriptor:
    """A tensor whose boxes the copy engine fetches and writes."""

    tensor: Tensor
    block_shape: list[int]
    layout: object

    @staticmethod
    def from_tensor(tensor: Tensor, block_shape: list[int], layout: object) -> TensorDescriptor:
        assert tensor.stride(-1) == 1
        assert all(stride * tensor.itemsize % 16 == 0 for stride in tensor.stride()[:-1]), "rows begin at 16 bytes"
        assert block_shape[-1] * tensor.itemsize <= 128, "a box is as wide as numbers are shuffled"
        return TensorDescriptor(tensor.detach(), block_shape, layout)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def box(self, at: Sequence[Any]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """What of a box lies within the tensor: there, and in the box."""
        begins = [int(each) for each in at]
        assert all(-(2**31) <= begin < 2**31 for begin in begins)
        bounds = [
            (begin, max(begin, 0), min(begin + size, length))
            for begin, size, length in zip(begins, self.block_shape, self.tensor.shape, strict=True)
        ]
        there = tuple(slice(low, max(low, high)) for _, low, high in bounds)
        return there, tuple(slice(low - begin, max(low, high) - begin) for begin, low, high in bounds)


def _fetch(desc: TensorDescriptor, at: Sequence[Any], bar: Barrier, into: View) -> None:
    assert list(into.shape) == desc.block_shape
    assert into.dtype == desc.dtype
    there, here = desc.box(at)
    value = torch.zeros(desc.block_shape, dtype=desc.dtype)
    value[here] = desc.tensor[there]
    into.expect()

    def arrive() -> None:
        into.arrive(value)
        bar.complete(into.num_bytes)

    now().turns.arriving.append(arrive)
    now().turns.step()


def _write(desc: TensorDescriptor, at: Sequence[Any], source: View) -> None:
    assert list(source.shape) == desc.block_shape
    there, here = desc.box(at)
    # Read now, and held until it is waited for: nobody may change it in between, so when it is read makes no difference.
    desc.tensor[there] = source.read_beside()[here]
    now().stores.setdefault(now().turns.name, []).append(source)
    now().turns.step()


def _wait_for_stores(pending: int) -> None:
    stores = now().stores.get(now().turns.name, [])
    while len(stores) > pending:
        stores.pop(0).release()


def fence_async_shared() -> None:
    for storage in now().storages:
        storage.fence()


tma = SimpleNamespace(
    async_copy_global_to_shared=_fetch, async_copy_shared_to_global=_write, store_wait=_wait_for_stores
)


# The matrix units


@dataclass
class Product:
    """Under way until it is waited for: what it gives may not be looked at before."""

    value: Tensor
    reads: list[View] = field(default_factory=list)
    is_done: bool = False

    def finish(self) -> None:
        for view in self.reads:
            view.release()
        self.is_done = True


def warpgroup_mma(a: Any, b: View, acc: Any, *, use_acc: bool = True, is_async: bool = False) -> Any:
    reads = [each for each in (a, b) if isinstance(each, View)]
    left, right = (each.read_beside() if isinstance(each, View) else each for each in (a, b))
    assert left.dtype == right.dtype
    assert left.dtype.itemsize == 2
    sums = acc.value if isinstance(acc, Product) else acc
    product = left.float() @ right.float()
    assert product.shape == sums.shape
    found = Product(product + sums if use_acc else product, reads)
    now().products.setdefault(now().turns.name, []).append(found)
    now().turns.step()
    return found if is_async else warpgroup_mma_wait(0, deps=(found,))


def warpgroup_mma_wait(pending: int, deps: tuple[Product, ...]) -> Any:
    products = now().products.get(now().turns.name, [])
    while len(products) > pending:
        products.pop(0).finish()
    assert all(each.is_done for each in deps), "it was not waited for long enough"
    values = tuple(each.value for each in deps)
    return values[0] if len(values) == 1 else values


# Barriers and shared memory


def _allocate(dtype: torch.dtype, shape: list[int], layout: object) -> Any:
    program = now()
    if isinstance(layout, _OfBarriers):
        first = program.num_barriers
        program.num_barriers += shape[0]
        return SimpleNamespace(
            index=[Barrier(f"barrier {first + i}", program.turns) for i in range(shape[0])].__getitem__
        )
    size = torch.Size(shape).numel()
    storage = Storage(dtype, size, program.turns)
    program.storages.append(storage)
    return View(storage, torch.arange(size).view(shape))


class _OfBarriers:
    pass


mbarrier = SimpleNamespace(
    MBarrierLayout=_OfBarriers,
    init=lambda bar, count: bar.init(count),
    expect=lambda bar, num_bytes: bar.expect(num_bytes),
    arrive=lambda bar, count: bar.arrive(count),
    wait=lambda bar, phase: bar.wait(int(phase)),
)


def _specialize(
    groups: list[tuple[Callable[..., None], tuple[Any, ...]]], warps: list[int], registers: list[int]
) -> None:
    assert len(groups) == len(warps) + 1 == len(registers) + 1

    def call(function: Callable[..., None], args: tuple[Any, ...]) -> Callable[[], None]:
        def run() -> None:
            function(*args)

        run.__name__ = function.__name__
        return run

    now().turns.run([call(*group) for group in groups])


# The rest


def _layout(*_: Any, **__: Any) -> None:
    return None


def _where(condition: Tensor, a: Any, b: Any) -> Tensor:
    return torch.where(condition, a, b)


def _assemble(code: str, constraints: str, args: list[Tensor], dtype: torch.dtype, is_pure: bool, pack: int) -> Tensor:
    """Of the assembler the one instruction that is used: or, with zeros."""
    assert code == "or.b32 $0, $1, $2;"
    held, zero = args
    assert not zero.any()
    return held


def _hold(condition: bool) -> None:
    assert condition


def _divide_up(a: Any, b: Any) -> Any:
    """A GPU cuts towards 0, Python down: for what is negative they would differ."""
    assert (torch.as_tensor(a) >= 0).all()
    return (a + b - 1) // b


def _least(a: Any, b: Any) -> Tensor:
    return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))


def _most(a: Any, b: Any) -> Tensor:
    return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))


gl = SimpleNamespace(
    constexpr=lambda value: value,
    static_range=range,
    float32=torch.float32,
    int16=torch.int16,
    int32=torch.int32,
    int64=torch.int64,
    program_id=lambda axis: scalar(now().place[axis]),
    num_programs=lambda axis: scalar(now().grid[axis]),
    num_warps=lambda: 4,
    cdiv=_divide_up,
    static_assert=_hold,
    arange=lambda begin, end, layout: torch.arange(begin, end, dtype=torch.int32),
    zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
    full=lambda shape, value, dtype, layout: torch.full(shape, value, dtype=dtype),
    inline_asm_elementwise=_assemble,
    load=load,
    store=store,
    where=_where,
    minimum=_least,
    maximum=_most,
    max=lambda value, axis: value.amax(axis),
    sum=lambda value, axis: value.sum(axis),
    exp2=torch.exp2,
    log2=torch.log2,
    convert_layout=lambda value, layout: value,
    allocate_shared_memory=_allocate,
    warp_specialize=_specialize,
    BlockedLayout=_layout,
    DotOperandLayout=_layout,
    NVMMADistributedLayout=_layout,
    NVMMASharedLayout=_layout,
    SliceLayout=_layout,
    SwizzledSharedLayout=_layout,
)
