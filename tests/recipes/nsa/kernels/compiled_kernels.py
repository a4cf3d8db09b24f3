"""The kernels that have tiles, compiled for a GPU that is not there: Triton's compiler needs none.

compile_kernel("window_forward", 64, torch.bfloat16, tile, 89).metadata.shared      -> 16384, the bytes of shared memory that a program has
"""

from __future__ import annotations

from typing import Any

import torch

from paceline.recipes.nsa.kernels.launching import precision_of
from paceline.recipes.nsa.kernels.tiles import KERNELS, Tile
from tests.hopper.compiling import compile_for

_POINTERS = {
    "low": "*i32", "high": "*i32", "since": "*i32", "until": "*i32", "word": "*i32", "owner": "*i32", "entry": "*i32",
    "pieces": "*i32", "first": "*i32", "seen": "*i32", "position": "*i32", "after": "*i32", "count": "*i64",
    "lse": "*fp32", "logsum": "*fp32", "delta": "*fp32", "parts_lse": "*fp32", "sums": "*fp32", "scores": "*fp32",
}  # fmt: skip
"""what is not of the type of the queries"""
_LONG = {"dk_ptr": "*fp32", "dv_ptr": "*fp32", "entry_ptr": "*i64"}
_REALS = ("scale", "factor")


def compile_kernel(
    kernel: str, width: int, dtype: torch.dtype, tile: Tile, capability: int, block: int = 64, is_long: bool = False
) -> Any:
    """As it is launched for two groups of 6 heads, with selection blocks of `block` tokens; of long rows keys' gradients are summed up in
    fp32, and places need 64 bits.
    """
    function = _find(KERNELS[kernel])
    constants: dict[str, Any] = {"H": 12, "G": 2, "D": width, "PRECISION": precision_of(dtype)}
    constants |= _size(kernel, block, is_long) | tile
    numbers = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]

    def name_type(name: str) -> str:
        if name.endswith("_desc"):
            rows = constants["BM" if name[0] in "qg" else "BN"]
            return f"tensordesc<{numbers}[{rows}, {width}]>"
        if is_long and name in _LONG:
            return _LONG[name]
        if name.endswith("_ptr"):
            return _POINTERS.get(name.removesuffix("_ptr"), f"*{numbers}")
        return "fp32" if name in _REALS else "i32"

    types = {name: name_type(name) for name in function.arg_names}
    known = {} if kernel.startswith("selected") else {"word_ptr": None}
    return compile_for(function, types, constants, known, capability)


def _find(launched: str) -> Any:
    from paceline.recipes.nsa.kernels import chosen_kernels, range_kernels, score_kernels

    rooms = {"range": range_kernels, "chosen": chosen_kernels, "score": score_kernels}
    return getattr(rooms[launched.partition("_")[0]], f"nsa_{launched}_kernel")


def _size(kernel: str, block: int, is_long: bool) -> dict[str, Any]:
    launched = KERNELS[kernel]
    if launched == "score":
        return {"SELECTION": block, "PER_BLOCK": 2, "PER_SELECTION": block // 16, "REACH": 2, "SLOTS": 512}
    if launched.startswith("chosen"):
        return {"N": 16, "L": block, "ADDS": is_long, "KEYS_FIRST": False}
    selection = block if kernel.startswith("selected") else 0
    return {"SELECTION": selection, "SHARE": 1 if is_long else 6, "SPANS": 8 if is_long else 1}
