"""Which errors are about memory, and what they asked for, in the words of the allocators themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.engine.out_of_memory import asked_bytes, explain_out_of_memory, is_out_of_memory, name_batch

CUDA = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.80 GiB of which 401.00 MiB is free. "
    "Process 4711 has 90.00 GiB memory in use."
)


def test_real_failures_are_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert is_out_of_memory(caught.value)
    assert asked_bytes(str(caught.value)) == 2**52
    with pytest.raises(MemoryError) as caught:
        np.empty(2**50)
    assert is_out_of_memory(caught.value)
    assert asked_bytes(str(caught.value)) == 2**53
    with pytest.raises(MemoryError) as caught:
        bytearray(2**60)
    assert is_out_of_memory(caught.value)
    assert asked_bytes(str(caught.value)) is None
    assert is_out_of_memory(torch.OutOfMemoryError(CUDA))
    assert asked_bytes(CUDA) == int(2.5 * 2**30)
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ZeroDivisionError("out of memory"))


def test_what_is_known_is_said_and_what_is_not_is_left_out(make_context):
    context = make_context({"train": {"global_batch": 1, "activation_checkpointing": True}})
    context.pulse.beat(7, "forward")
    error = MemoryError()
    name_batch(error, {"x": torch.zeros(2, 3), "n": 4})
    (problem,) = explain_out_of_memory(error, context).problems
    assert problem.what.startswith("this machine ran out of memory: ")
    assert "asked for" not in problem.what
    assert problem.where.startswith("rank 0, step 7, forward; batch: x 2 × 3; 1 samples")
    assert problem.do == "use a smaller model, or more memory"
