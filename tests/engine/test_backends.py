"""SDPA's backends, asked of the torch that is here; the words of CUDA's refusals as recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paceline.engine.backends import (
    BACKENDS,
    allow_only,
    build_states,
    find_refusals,
    find_selected,
    read_reason,
    restricted,
)
from paceline.workload import AttentionCall

CPU, FP32 = torch.device("cpu"), torch.float32
CALL = AttentionCall("training", rows=2, heads=2, queries=9, keys=9, width=5, is_causal=True)


@pytest.fixture(autouse=True)
def _as_before():
    with restricted(tuple(BACKENDS)):
        yield


def test_a_cpu_has_flash_and_math_and_flash_drops_nothing():
    assert find_refusals(CALL, FP32, CPU) == {"cudnn": "a CPU has none", "efficient": "a CPU has none"}
    dropping = find_refusals(replace(CALL, dropout=0.1), FP32, CPU)
    assert dropping["flash"] == "Both fused kernels do not support non-zero dropout"
    assert "math" not in dropping
    assert find_refusals(
        replace(CALL, is_causal=False, mask="boolean", phase="evaluation"), torch.bfloat16, CPU
    ).keys() == {
        "cudnn",
        "efficient",
    }


def test_what_torch_takes_among_what_is_allowed():
    assert find_selected(CALL, FP32, CPU) == "flash"
    assert find_selected(CALL, FP32, CPU, ("math", "cudnn")) == "math"
    assert find_selected(replace(CALL, dropout=0.1), FP32, CPU) == "math"
    assert find_selected(replace(CALL, is_causal=False, mask="bias"), FP32, CPU, ("flash",)) == "flash"


def test_asking_changes_nothing_and_a_restriction_ends():
    def flags():
        cuda = torch.backends.cuda
        return (
            cuda.flash_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
        )

    allow_only(("flash", "math"))
    assert flags() == (True, False, False, True)
    find_refusals(replace(CALL, dropout=0.1), FP32, CPU)
    find_selected(CALL, FP32, CPU, ("math",))
    with restricted(("efficient",)):
        assert flags() == (False, False, True, False)
    assert flags() == (True, False, False, True)


def test_states_are_as_the_call_has_them():
    query, key, _, mask = build_states(replace(CALL, keys=4, is_causal=False, mask="boolean"), FP32, CPU)
    assert (tuple(query.shape), tuple(key.shape)) == ((2, 2, 9, 5), (2, 2, 4, 5))
    assert query.requires_grad
    assert mask.dtype == torch.bool
    assert not build_states(replace(CALL, phase="evaluation"), FP32, CPU)[0].requires_grad


REFUSED = [
    "Memory efficient kernel not used because: (Triggered internally at /pytorch/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp:884.)",
    "Memory Efficient attention has been runtime disabled. (Triggered internally at /pytorch/aten/src/ATen/native/transformers/sdp_utils_cpp.h:550.)",
    "Flash attention kernel not used because: (Triggered internally at /pytorch/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp:886.)",
    "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: float, Key dtype: float, and Value dtype: float instead. (Triggered internally at x.h:100.)",
    "cuDNN attention kernel not used because: (Triggered internally at /pytorch/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp:888.)",
    "cuDNN SDPA is not deterministic. (Triggered internally at /pytorch/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp:720.)",
]


def test_the_reason_against_one_backend_is_found_among_all():
    assert read_reason("flash", REFUSED).startswith(
        "Expected query, key and value to all be of dtype: {Half, BFloat16}"
    )
    assert read_reason("flash", REFUSED).endswith("instead")
    assert read_reason("cudnn", REFUSED) == "cuDNN SDPA is not deterministic"
    assert read_reason("efficient", REFUSED) == "Memory Efficient attention has been runtime disabled"
    assert read_reason("math", REFUSED) == ""
