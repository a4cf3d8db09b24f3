"""Which stages compute sparse attention on a device, and why.

    choose_path("auto", "cpu", model, "warn")      -> Path("torch", "no GPU")
    find_path("fast", "cpu", model)                -> Path("torch", "no GPU")
    build_stages("torch")                          -> the stages of torch_path.py
    name_kernels("fast")["selected"]               -> "nsa_chosen"

What a training cannot be served is refused with the reason: `fast` always, `auto` where attention.fallback=error asks for kernels or
nothing. A model that was trained can be read anywhere: its weights know no path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from paceline.errors import ConfigError, Problem
from paceline.recipes.nsa.config import KERNEL_BLOCKS, KERNEL_GROUP, KERNEL_SELECTED, KERNEL_WIDTHS, Model, list_sizes
from paceline.recipes.nsa.gates import BRANCHES
from paceline.recipes.nsa.kernels.fast_path import FAST, KERNELS, build_fast
from paceline.recipes.nsa.kernels.launching import MOST_ROWS
from paceline.recipes.nsa.kernels.tiles import BUILT_IN, LARGE_BLOCKS_SHARED, Tiles, find_shared
from paceline.recipes.nsa.stages import Stages
from paceline.recipes.nsa.torch_path import TORCH
from paceline.workload import AttentionCall

_LEAST_CAPABILITY = (8, 0)
_ROWS = {"training": "train.micro_batch", "evaluation": "evaluate.block"}
"""what says how many rows each phase has at once"""


@dataclass(frozen=True)
class Path:
    name: str
    """fast, torch or reference"""
    reason: str


def choose_path(requested: str, device_type: str, model: Model, fallback: str) -> Path:
    """ConfigError where the request cannot be served."""
    if requested in ("torch", "reference"):
        return Path(requested, "as requested")
    refusal = fast_refusal(device_type, model)
    if not refusal:
        return Path("fast", "as requested" if requested == "fast" else "kernels for this GPU and these sizes")
    do = "set model.sparse_path=torch, or auto"
    if requested == "fast":
        raise ConfigError(f"model.sparse_path=fast cannot be served here: {refusal}", "model.sparse_path", do)
    if device_type == "cuda" and fallback == "error":
        what = f"model.sparse_path=auto finds no kernels here: {refusal}"
        raise ConfigError(what, "model.sparse_path and attention.fallback=error", "set model.sparse_path=torch")
    return Path("torch", refusal)


def find_path(requested: str, device_type: str, model: Model) -> Path:
    """What computes a model here, whatever it was trained with."""
    return choose_path("auto" if requested == "fast" else requested, device_type, model, "warn")


def fast_refusal(device_type: str, model: Model) -> str:
    """Why the fast path cannot compute this model on this kind of device; empty where it can."""
    if device_type != "cuda":
        return "its kernels are for GPUs, and there is none here"
    if model.head_width not in KERNEL_WIDTHS:
        return f"its kernels take heads {list_sizes(KERNEL_WIDTHS, 'or')} wide, not {model.head_width}"
    if model.heads > KERNEL_GROUP * model.groups:
        return f"its kernels take up to {KERNEL_GROUP} heads per group, not {model.heads // model.groups}"
    if model.selection_block not in KERNEL_BLOCKS:
        taken = list_sizes(KERNEL_BLOCKS, "or")
        return f"its kernels take selection blocks of {taken} tokens, not {model.selection_block}"
    if model.selected > KERNEL_SELECTED:
        return f"its kernels take up to {KERNEL_SELECTED} selected blocks, not {model.selected}"
    if torch.version.hip:
        # There torch calls a GPU cuda, too, and numbers that are no compute capabilities look like Hopper's.
        return "its kernels are for GPUs of NVIDIA, and this torch is for those of AMD"
    if find_spec("triton") is None:
        return "its kernels need Triton, which is not installed"
    capability = torch.cuda.get_device_capability(device_type)
    if capability < _LEAST_CAPABILITY:
        # Triton's own least; and the built-in tiles were compiled for GPUs from there on (tiles.py).
        least, here = (".".join(map(str, each)) for each in (_LEAST_CAPABILITY, capability))
        return f"its kernels need a GPU of compute capability {least} or later, and this one has {here}"
    if model.selection_block == model.head_width == 128:
        # Such a block's keys and values, which a program keeps, are the largest; all others fit (tiles.py).
        shared = find_shared(torch.device(device_type))
        if shared < LARGE_BLOCKS_SHARED:
            sizes = f"selection blocks of {model.selection_block} tokens of heads {model.head_width} wide"
            needed = f"{LARGE_BLOCKS_SHARED // 2**10} KiB of shared memory"
            return f"its kernels need {needed} for {sizes}, and this GPU has {shared // 2**10}"
    return ""


def check_rows(calls: Sequence[AttentionCall]) -> None:
    """ConfigError where the kernels cannot be launched for as many rows and heads; before a step is made, and not after an epoch."""
    most = {call.phase: call for call in calls if call.rows * call.heads > MOST_ROWS}
    problems = [
        Problem(
            f"{call.rows:,} samples at once in {phase} × model.heads={call.heads} = {call.rows * call.heads:,}, "
            f"and the kernels of sparse attention take {MOST_ROWS:,} on a GPU",
            f"{_ROWS[phase]} and model.heads",
            f"set {_ROWS[phase]}={MOST_ROWS // call.heads} or less, or model.sparse_path=torch",
        )
        for phase, call in most.items()
    ]
    if problems:
        raise ConfigError(problems=problems)


def build_stages(path: str, tiles: Tiles = BUILT_IN) -> Stages | None:
    """None: the reference, which has none. Tiles are of the fast path."""
    if path == "fast":
        return FAST if tiles is BUILT_IN else build_fast(tiles)
    return {"torch": TORCH, "reference": None}[path]


def name_kernels(path: str) -> Mapping[str, str]:
    """How the names of each branch's kernels begin; torch where it has none."""
    return KERNELS if path == "fast" else dict.fromkeys(BRANCHES, "torch")
