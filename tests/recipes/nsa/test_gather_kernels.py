"""The kernels for Hopper on a machine that has none: Triton's compiler needs no GPU.

What they compute is simulated in simulated_kernels.py, and tested for real in tests/gpu."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch

from paceline.recipes.nsa import gather_attention
from paceline.recipes.nsa.gather_attention import choose_options

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("triton") is None, reason="the kernels are in Triton, which is not installed"),
]

_SM_BYTES, _RESERVED_BYTES = 228 * 2**10, 2**10
"""shared memory of an SM, and what it keeps of it for itself with every program"""
_POINTERS = {"owner": "*i32", "pieces": "*i32", "count": "*i64", "sums": "*fp32", "lse": "*fp32", "delta": "*fp32"}
_SIZES = {"t0": "i32", "Q": "i32", "T": "i32", "room": "i32", "scale": "fp32", "factor": "fp32"}


def compile_kernel(kernel: Any, width: int, heads: int, dtype: str, is_long: bool, given: dict[str, int]) -> Any:
    """Of two groups, as it is launched; of long rows places need 64 bits, and keys' gradients are summed up in fp32."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource
    from triton.experimental.gluon.language import NVMMASharedLayout

    def describe(tile: list[int]) -> str:
        return f"tensordesc<{dtype}{tile},{NVMMASharedLayout(128, 16, len(tile))!r}>"

    padded = 8 if heads <= 8 else 16
    rows = describe([1, padded, 64])
    types = {"q_desc": rows, "grad_desc": rows, "parts_desc": rows}
    types |= dict.fromkeys(("k_desc", "v_desc"), describe([64, 64])) | dict.fromkeys(
        ("dk_ptr", "dv_ptr"), "*fp32" if is_long else f"*{dtype}"
    )
    types |= {f"{name}_ptr": kind for name, kind in _POINTERS.items()} | _SIZES
    types |= {"entry_ptr": "*i64" if is_long else "*i32", "parts_lse_ptr": "*fp32"}
    constants = {name: value for name, value in given.items() if name.isupper()}
    constants |= {"H": 2 * heads, "G": 2, "D": width, "N": 16, "L": 64, "PER": 64 // padded, "RP": padded}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = GluonASTSource(
        kernel, signature, {(names.index(name),): constants[name] for name in constants}, attributes
    )
    options = {name: value for name, value in given.items() if name not in constants}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize(("width", "heads"), [(64, 6), (128, 16)])
@pytest.mark.parametrize(("dtype", "is_long"), [("bf16", False), ("bf16", True), ("fp16", False)])
def test_they_compile_and_two_programs_fit(width: int, heads: int, dtype: str, is_long: bool) -> None:
    from paceline.recipes.nsa.gather_gradient_kernels import nsa_chosen_gather_gradient_kernel
    from paceline.recipes.nsa.gather_kernels import nsa_chosen_gather_forward_kernel

    options = choose_options("forward", width)
    forward = compile_kernel(nsa_chosen_gather_forward_kernel, width, heads, dtype, is_long, options)
    options = choose_options("gradient", width) | {"ADDS": int(is_long)}
    gradient = compile_kernel(nsa_chosen_gather_gradient_kernel, width, heads, dtype, is_long, options)
    for compiled, fetches in ((forward, 3), (gradient, 4)):
        assert "wgmma.mma_async" in compiled.asm["ptx"]
        # Keys and values, queries and what is found of them: by the copy engine, each half of a head.
        assert compiled.asm["ptx"].count("cp.async.bulk.tensor") >= fetches * width // 64
        assert 2 * (compiled.metadata.shared + _RESERVED_BYTES) <= _SM_BYTES


@pytest.mark.parametrize(
    ("heads", "width", "dtype", "block", "device", "is_used"),
    [
        (6, 64, torch.bfloat16, 64, "cuda:0", True),
        (16, 128, torch.float16, 64, "cuda:0", True),
        (4, 64, torch.bfloat16, 64, "cuda:0", False),
        (17, 64, torch.bfloat16, 64, "cuda:0", False),
        (6, 32, torch.bfloat16, 64, "cuda:0", False),
        (6, 64, torch.float32, 64, "cuda:0", False),
        (6, 64, torch.bfloat16, 128, "cuda:0", False),
        (6, 64, torch.bfloat16, 64, "cpu", False),
    ],
)
def test_where_they_are_used(
    heads: int, width: int, dtype: torch.dtype, block: int, device: str, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather_attention, "_has_hopper", lambda _: True)
    assert gather_attention.can_gather(heads, width, dtype, block, torch.device(device)) == is_used
