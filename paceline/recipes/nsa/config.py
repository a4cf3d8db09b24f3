"""What an nsa configuration may say, what contradicts itself in it, and the recipe's entry in the registry. No torch, no numpy.

paceline train nsa model.sparse=always data.length=8192
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from paceline.config import sections
from paceline.config.sections import IDENTITY, NUMERICS, Section, key
from paceline.errors import Problem
from paceline.recipes.nsa.data.source import identify_data as identify_tokens
from paceline.recipes.nsa.data_config import Data, check_data, find_idle_data
from paceline.workload import Recipe, Workload

FORCED = 3
"""selection blocks that a query always looks at: the document's first, its own, and the one before that"""
KERNEL_WIDTHS, KERNEL_BLOCKS, KERNEL_GROUP = (64, 128), (16, 32, 64, 128), 16
"""what the kernels for GPUs take: widths of a head, tokens of a selection block, and heads of a group at most"""
KERNEL_SELECTED = 256
"""blocks of a query at most: to turn round who chose them a program takes 64 KiB of shared memory then, 256 KiB of 1,024 blocks (Triton 3.6)"""


class Model(Section):
    sparse: Literal["auto", "always", "never"] = key(
        "auto",
        "Native sparse attention, or its dense twin; auto: sparse where data.length reaches model.break_even.",
        IDENTITY,
    )
    break_even: int = key(
        16_384,
        "For sparse auto: tokens of a sample from which sparse attention is the faster one. Part of the configuration, and not "
        "measured at the start: the two have different weights.",
        IDENTITY,
        ge=1,
    )
    sparse_path: Literal["auto", "fast", "torch", "reference"] = key(
        "auto",
        "What computes sparse attention: kernels for GPUs, plain torch, or one query after another as the paper says it, for tests; "
        "auto: fast where there are kernels for it, else torch.",
        NUMERICS,
    )
    tiles: Literal["auto", "built-in", "tune"] = key(
        "auto",
        "Tiles of the kernels: auto: those that `paceline bench nsa --tune` measured for this GPU, these versions and this shape, "
        "else the built-in ones; tune: what was not measured yet is, before the first step.",
        NUMERICS,
    )
    width: int = key(768, "Width of the hidden states.", IDENTITY, ge=1)
    # As many as any model has, and few enough that a slip of the keyboard is told before memory runs out.
    layers: int = key(12, "Transformer blocks.", IDENTITY, ge=1, le=10_000)
    heads: int = key(12, "Attention heads.", IDENTITY, ge=1)
    groups: int = key(2, "Groups of heads that share keys, values and selected blocks.", IDENTITY, ge=1)
    head_width: int = key(64, "Width of a head; RoPE turns its halves against each other.", IDENTITY, ge=2)
    feed_forward: int | None = key(
        None, "Hidden width of SwiGLU; null: 8/3 × width, up to a multiple of 64.", IDENTITY, ge=1
    )
    gate: Literal["sigmoid", "softmax"] = key(
        "sigmoid", "How much a head listens to each branch: each by itself, or shared out.", IDENTITY
    )
    block: int = key(32, "Tokens of a compressed block.", IDENTITY, ge=1)
    stride: int = key(16, "Tokens from one compressed block to the next.", IDENTITY, ge=1)
    selection_block: int = key(64, "Tokens of a selection block.", IDENTITY, ge=1)
    # Plain torch has room for as many per query, whether there are blocks or not.
    selected: int = key(
        16, "Selection blocks that a query looks at, the three forced ones included.", IDENTITY, le=1024
    )
    window: int = key(512, "Tokens of the sliding window, the query's own included.", IDENTITY, ge=1)


class NsaConfig(sections.RunConfig):
    """A whole nsa configuration."""

    recipe: Literal["nsa"] = key(..., "Which recipe trains.", IDENTITY)
    data: Data = key(Data(), "Tokens, read or generated.")
    model: Model = key(Model(), "The language model.")


def is_sparse(config: NsaConfig) -> tuple[bool, str]:
    """(whether attention is sparse, why): the same on every machine, for the weights follow from it."""
    model, length = config.model, config.data.length
    if model.sparse != "auto":
        return model.sparse == "always", "as requested"
    relation = ">=" if length >= model.break_even else "<"
    why = "" if length >= model.break_even else ": below it dense attention is the faster one"
    return length >= model.break_even, f"data.length={length} {relation} model.break_even={model.break_even}{why}"


def build(config: NsaConfig) -> Workload:
    from paceline.recipes.nsa.workload import NsaWorkload

    return NsaWorkload(config)


def identify_data(config: NsaConfig) -> str:
    return identify_tokens(config.data)


def check(config: NsaConfig) -> list[Problem]:
    """Contradictions that types alone cannot see."""
    model = config.model
    if not is_sparse(config)[0]:
        return [*_check_heads(model, False), *check_data(config.data, None, None)]
    by_kernels = model.sparse_path == "fast"
    pattern = list(_check_pattern(model, by_kernels))
    # What data must keep from is known when the blocks are.
    block = None if pattern else model.selection_block
    return [*_check_heads(model, by_kernels), *pattern, *check_data(config.data, model.window, block)]


def _check_heads(model: Model, by_kernels: bool) -> Iterator[Problem]:
    """`by_kernels`: only sizes that the kernels take are right, and only such are advised."""
    most = KERNEL_GROUP if by_kernels else model.heads
    fitting = [n for n in range(1, model.heads + 1) if model.heads % n == 0 and model.heads <= most * n]
    nearest = min(fitting, key=lambda groups: abs(groups - model.groups))
    if model.heads % model.groups:
        more = -(-model.heads // model.groups) * model.groups
        yield Problem(
            f"model.heads={model.heads} cannot be shared out among model.groups={model.groups} "
            f"({model.heads} = {model.heads // model.groups} × {model.groups} + {model.heads % model.groups})",
            "model.heads and model.groups",
            f"set model.groups={nearest}" + (f", or model.heads={more}" if more <= most * model.groups else ""),
        )
    elif model.heads > most * model.groups:
        what = (
            f"model.heads={model.heads} in model.groups={model.groups} with model.sparse_path=fast, whose kernels take "
            f"{most} per group at most"
        )
        do = f"set model.groups={nearest}, or model.sparse_path=auto"
        yield Problem(what, "model.heads, model.groups and model.sparse_path", do)
    if by_kernels and model.head_width not in KERNEL_WIDTHS:
        width = _find_nearest(KERNEL_WIDTHS, model.head_width)
        yield _refuse_size(model, "head_width", KERNEL_WIDTHS, width, can_auto=model.head_width % 2 == 0)
    elif model.head_width % 2:
        what = f"model.head_width={model.head_width} is odd: RoPE turns coordinates in pairs"
        yield Problem(what, "model.head_width", f"set model.head_width={model.head_width + 1}")


def _refuse_size(model: Model, name: str, taken: Sequence[int], instead: int | None, can_auto: bool = True) -> Problem:
    what = f"model.{name}={getattr(model, name)} with model.sparse_path=fast, whose kernels take {list_sizes(taken, 'and')}"
    ways = [f"model.{name}={instead}"] * (instead is not None) + ["model.sparse_path=auto"] * can_auto
    return Problem(what, f"model.{name} and model.sparse_path", f"set {', or '.join(ways)}")


def _find_nearest(sizes: Sequence[int], size: int) -> int | None:
    return min(sizes, key=lambda each: abs(each - size), default=None)


def list_sizes(sizes: Sequence[int], last: str) -> str:
    """16, 32 and 64"""
    return f" {last} ".join([", ".join(map(str, sizes[:-1])), str(sizes[-1])])


def _check_pattern(model: Model, by_kernels: bool) -> Iterator[Problem]:
    """Whatever is wrong with a size, the same one is advised: one that nothing speaks against."""
    block, least = (-(-size // model.stride) * model.stride for size in (model.block, model.selection_block))
    fitting = [size for size in KERNEL_BLOCKS if size >= block and size % model.stride == 0]
    selection = _find_nearest(fitting, model.selection_block) if by_kernels else max(block, least)
    by_others = f"{max(block, least)} and model.sparse_path=auto"
    set_selection = f"set model.selection_block={by_others if selection is None else selection}"
    for name, do in (("block", f"set model.block={block}"), ("selection_block", set_selection)):
        size = getattr(model, name)
        if size % model.stride:
            yield Problem(
                f"model.{name}={size} is no multiple of model.stride={model.stride}, in which blocks are laid over each other",
                f"model.{name} and model.stride",
                f"{do}, or another model.stride",
            )
    if model.selection_block < model.block:
        what = f"model.selection_block={model.selection_block} is smaller than model.block={model.block}, whose scores it sums up"
        yield Problem(what, "model.selection_block and model.block", set_selection)
    if by_kernels and model.selection_block not in KERNEL_BLOCKS:
        yield _refuse_size(model, "selection_block", KERNEL_BLOCKS, selection)
    if model.selected < FORCED:
        what = f"model.selected={model.selected} has no room for the {FORCED} blocks that are always looked at"
        yield Problem(what, "model.selected", f"set model.selected={FORCED} or more")
    if by_kernels and model.selected > KERNEL_SELECTED:
        what = (
            f"model.selected={model.selected} with model.sparse_path=fast, whose kernels take up to {KERNEL_SELECTED}"
        )
        do = f"set model.selected={KERNEL_SELECTED}, or model.sparse_path=auto"
        yield Problem(what, "model.selected and model.sparse_path", do)


def find_idle(config: NsaConfig, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """What was given and changes nothing, with the reason."""
    return ((name, reason) for name, reason in _list_idle(config) if name in given)


def _list_idle(config: NsaConfig) -> Iterator[tuple[str, str]]:
    yield from find_idle_data(config.data)
    if config.model.sparse != "auto":
        yield "model.break_even", f"model.sparse={config.model.sparse}"
    if is_sparse(config)[0]:
        if config.attention.fallback != "error":  # which ends a run that asks for what it cannot have
            yield "attention.impl", "sparse attention has stages of its own: model.sparse_path"
        if config.model.sparse_path in ("torch", "reference"):
            yield "model.tiles", f"only kernels have tiles, and model.sparse_path={config.model.sparse_path} has none"
    else:
        for name in ("sparse_path", "tiles", "gate", "block", "stride", "selection_block", "selected", "window"):
            yield f"model.{name}", "attention is dense"


def heeds(config: NsaConfig) -> Collection[str]:
    """Where sparse attention asks for kernels but may do without, attention.fallback says whether it does (paths.py)."""
    return ("attention.fallback",) if is_sparse(config)[0] and config.model.sparse_path == "auto" else ()


RECIPE = Recipe(
    name="nsa",
    schema=NsaConfig,
    build=build,
    identify_data=identify_data,
    check=check,
    find_idle=find_idle,
    heeds=heeds,
)
