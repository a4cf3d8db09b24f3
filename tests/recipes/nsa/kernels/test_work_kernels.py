"""The kernels that plan pieces of work, compiled for GPUs that are not there. What they compute is tested by Triton's interpreter (interpreted_work.py)."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from paceline.recipes.nsa.config import KERNEL_SELECTED
from tests.hopper.compiling import compile_for
from tests.hopper.machine_code import read_code

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("triton") is None, reason="the kernels are in Triton, which is not installed"),
]

POINTERS = ("chosen", "bits", "owner", "before", "size", "from", "pieces")
TYPES = {f"{name}_ptr": "*i32" for name in POINTERS} | {f"{name}_ptr": "*i64" for name in ("cuts", "upto", "total")}
TYPES |= dict.fromkeys(("t0", "Q", "T", "J", "C", "room"), "i32")


@pytest.mark.parametrize(("block", "selected", "entry"), [(16, 5, "*i32"), (64, 16, "*i32"), (128, 16, "*i64")])
@pytest.mark.parametrize("capability", [80, 90])
def test_they_compile_without_registers_in_memory(block: int, selected: int, entry: str, capability: int) -> None:
    from paceline.recipes.nsa.kernels import work_kernels

    padded = 1 << (selected - 1).bit_length()
    given = {"N": selected, "NP": padded, "L": block, "ROWS": 32, "G": 2, "PIECE": 1024, "WORDS": 1024, "BINS": 1024}
    for name in ("mark", "count", "sum_up", "place", "cut"):
        kernel = getattr(work_kernels, f"nsa_chosen_{name}_kernel")
        compiled = compile_for(kernel, TYPES | {"entry_ptr": entry}, given, capability=capability)
        assert compiled.metadata.shared <= 48 * 2**10
        names = {each.name.partition(".")[0] for each in read_code(compiled.asm["cubin"]).instructions}
        assert "STL" not in names, name
        # Only bits are set so, which does not depend on who comes first.
        assert bool(names & {"ATOM", "ATOMG", "RED", "REDG"}) == (name == "mark"), name


@pytest.mark.parametrize("capability", [80, 90])
def test_as_many_blocks_of_a_query_as_are_taken_fit_into_any_gpu(capability: int) -> None:
    """Triton 3.6 moves all of a program's places, of 8 bytes, through shared memory at once, 3.8 does not; a GeForce has 99 KiB."""
    assert 32 * KERNEL_SELECTED * 8 <= 99 * 2**10
    from paceline.recipes.nsa.kernels import work_kernels

    given = {"N": KERNEL_SELECTED, "NP": KERNEL_SELECTED, "L": 64, "ROWS": 32}
    for name in ("mark", "place"):
        kernel = getattr(work_kernels, f"nsa_chosen_{name}_kernel")
        compiled = compile_for(kernel, TYPES | {"entry_ptr": "*i64"}, given, capability=capability)
        assert compiled.metadata.shared <= 99 * 2**10
