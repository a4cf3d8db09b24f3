"""Kernels in Gluon compiled for Hopper on a machine that has none: Triton's compiler needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SM_BYTES, RESERVED_BYTES = 228 * 2**10, 2**10
"""shared memory of an SM, and what it keeps of it for itself with every program"""


def box(dtype: str, tile: list[int]) -> str:
    """The type of a descriptor that the copy engine takes boxes from."""
    from triton.experimental.gluon.language import NVMMASharedLayout

    return f"tensordesc<{dtype}{tile},{NVMMASharedLayout(128, 16, len(tile))!r}>"


def compile_for_hopper(
    kernel: Any, types: Mapping[str, str], given: Mapping[str, int], known: Mapping[str, None] | None = None
) -> Any:
    """As it is launched: `given` are its constants, in capitals, and the compiler's options; `known` what else is known when it is compiled;
    `types` those of its other arguments."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    constants: dict[str, Any] = {name: value for name, value in given.items() if name.isupper()} | dict(known or {})
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = GluonASTSource(
        kernel, signature, {(names.index(name),): constants[name] for name in constants}, attributes
    )
    options = {name: value for name, value in given.items() if name not in constants}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
