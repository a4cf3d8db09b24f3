"""Kernels compiled for a GPU on a machine that has none, for Hopper if nothing is said: Triton's compiler needs none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SM_BYTES, RESERVED_BYTES = 228 * 2**10, 2**10
"""shared memory of an SM, and what it keeps of it for itself with every program"""


def box(dtype: str, tile: list[int]) -> str:
    """The type of a descriptor that the copy engine takes boxes from."""
    from triton.experimental.gluon.language import NVMMASharedLayout

    return f"tensordesc<{dtype}{tile},{NVMMASharedLayout(128, 16, len(tile))!r}>"


def compile_for(
    kernel: Any,
    types: Mapping[str, str],
    given: Mapping[str, Any],
    known: Mapping[str, Any] | None = None,
    capability: int = 90,
) -> Any:
    """As it is launched, in Triton or Gluon, on a GPU of this compute capability: `given` are its constants, in capitals, and the compiler's
    options; `known` what else is known when it is compiled; `types` those of its other arguments."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    names = kernel.arg_names
    capitals = {name: value for name, value in given.items() if name.isupper()}
    constants = {name: value for name, value in (capitals | dict(known or {})).items() if name in names}
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    build = GluonASTSource if kernel.is_gluon() else ASTSource
    source = build(kernel, signature, {(names.index(name),): constants[name] for name in constants}, attributes)
    options = {name: value for name, value in given.items() if name not in capitals}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
