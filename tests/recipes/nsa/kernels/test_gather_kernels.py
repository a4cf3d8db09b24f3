"""The kernels for Hopper on a machine that has none: Triton's compiler needs no GPU.

What they compute is simulated in simulated_kernels.py, and tested for real in tests/gpu."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch

from paceline.recipes.nsa.kernels.gather_attention import can_gather, choose_options
from tests.hopper.compiling import RESERVED_BYTES, SM_BYTES, box, compile_for
from tests.hopper.machine_code import count_products, find_lost, read_code

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("triton") is None, reason="the kernels are in Triton, which is not installed"),
]

_POINTERS = {"owner": "*i32", "pieces": "*i32", "count": "*i64", "sums": "*fp32", "lse": "*fp32", "delta": "*fp32"}
_SIZES = {"t0": "i32", "Q": "i32", "T": "i32", "room": "i32", "scale": "fp32", "factor": "fp32"}


def compile_kernel(kernel: Any, width: int, heads: int, dtype: str, is_long: bool, given: dict[str, int]) -> Any:
    """Of two groups, as it is launched; of long rows places need 64 bits, and keys' gradients are summed up in fp32."""
    padded = 8 if heads <= 8 else 16
    types = dict.fromkeys(("q_desc", "grad_desc", "parts_desc"), box(dtype, [1, padded, 64]))
    types |= dict.fromkeys(("k_desc", "v_desc"), box(dtype, [64, 64]))
    types |= dict.fromkeys(("dk_ptr", "dv_ptr"), "*fp32" if is_long else f"*{dtype}")
    types |= {f"{name}_ptr": kind for name, kind in _POINTERS.items()} | _SIZES
    types |= {"entry_ptr": "*i64" if is_long else "*i32", "parts_lse_ptr": "*fp32"}
    sizes = {"H": 2 * heads, "G": 2, "D": width, "N": 16, "L": 64, "PER": 64 // padded, "RP": padded}
    return compile_for(kernel, types, given | sizes)


@pytest.mark.parametrize(("width", "heads"), [(64, 6), (128, 16)])
@pytest.mark.parametrize(("dtype", "is_long"), [("bf16", False), ("bf16", True), ("fp16", False)])
def test_they_compile_and_two_programs_fit(width: int, heads: int, dtype: str, is_long: bool) -> None:
    from paceline.recipes.nsa.kernels.gather_gradient_kernels import nsa_chosen_gather_gradient_kernel
    from paceline.recipes.nsa.kernels.gather_kernels import nsa_chosen_gather_forward_kernel

    options = choose_options("forward", width)
    forward = compile_kernel(nsa_chosen_gather_forward_kernel, width, heads, dtype, is_long, options)
    options = choose_options("gradient", width) | {"ADDS": int(is_long)}
    gradient = compile_kernel(nsa_chosen_gather_gradient_kernel, width, heads, dtype, is_long, options)
    for compiled, fetches in ((forward, 3), (gradient, 4)):
        assert "wgmma.mma_async" in compiled.asm["ptx"]
        # Keys and values, queries and what is found of them: by the copy engine, each half of a head.
        assert compiled.asm["ptx"].count("cp.async.bulk.tensor") >= fetches * width // 64
        assert 2 * (compiled.metadata.shared + RESERVED_BYTES) <= SM_BYTES
        code = read_code(compiled.asm["cubin"])
        assert find_lost(code) == []
        products, waits = count_products(code)
        assert 2 * waits < products, "the compiler lets none run beside another"


@pytest.mark.parametrize(
    ("heads", "width", "dtype", "block", "is_used"),
    [
        (6, 64, torch.bfloat16, 64, True),
        (16, 128, torch.float16, 64, True),
        (4, 64, torch.bfloat16, 64, False),
        (17, 64, torch.bfloat16, 64, False),
        (6, 32, torch.bfloat16, 64, False),
        (6, 64, torch.float32, 64, False),
        (6, 64, torch.bfloat16, 128, False),
    ],
)
def test_what_they_take(heads: int, width: int, dtype: torch.dtype, block: int, is_used: bool) -> None:
    assert can_gather(heads, width, dtype, block) == is_used
