"""The kernel for Hopper of keys' gradients on a machine that has none: what Triton's compiler makes of it. What it computes is simulated in simulated_kernels.py."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.hopper.compiling import RESERVED_BYTES, SM_BYTES, box, compile_for
from tests.hopper.machine_code import count_products, find_lost, read_code

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("triton") is None, reason="the kernels are in Triton, which is not installed"),
]


@pytest.mark.parametrize(("width", "ahead"), [(64, 3), (128, 2)])
@pytest.mark.parametrize("block", [0, 64], ids=["stretch", "words"])
@pytest.mark.parametrize(("dtype", "spans"), [("bf16", 1), ("fp16", 4)])
def test_it_compiles_and_two_programs_fit(width: int, ahead: int, block: int, dtype: str, spans: int) -> None:
    from paceline.recipes.nsa.kernels.key_gradient_kernels import nsa_range_copied_key_gradient_kernel

    types = dict.fromkeys(("q_desc", "k_desc", "v_desc", "grad_desc"), box(dtype, [64, 64]))
    types |= {f"{name}_ptr": "*i32" for name in ("low", "high", "since", "until")}
    types |= {"lse_ptr": "*fp32", "delta_ptr": "*fp32", "T": "i32", "S": "i32", "scale": "fp32", "factor": "fp32"}
    types |= dict.fromkeys(("dk_ptr", "dv_ptr"), "*fp32" if spans > 1 else f"*{dtype}")
    sizes = {"H": 12, "G": 2, "D": width, "SELECTION": block, "SHARE": 1 if spans > 1 else 6, "SPANS": spans}
    # Without words none are handed over.
    words = {} if block else {"word_ptr": None}
    types |= {"word_ptr": "*i32"} if block else {}
    tile = {"BM": 64, "BN": 64, "NBUF": ahead, "num_warps": 4, "maxnreg": 128}
    compiled = compile_for(nsa_range_copied_key_gradient_kernel, types, sizes | tile, words)
    assert 2 * (compiled.metadata.shared + RESERVED_BYTES) <= SM_BYTES
    code = read_code(compiled.asm["cubin"])
    assert find_lost(code) == []
    products, waits = count_products(code)
    assert products == 4 * (4 if width == 64 else 6)
    assert waits == 3, "as many as the kernel asks for"
