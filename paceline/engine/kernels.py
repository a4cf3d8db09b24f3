"""Names of kernels and operators, read for the attention that they belong to: what a profile saw. No torch.

    attention_backend_of("void pytorch_flash::flash_fwd_kernel<…>")                -> "flash"
    attention_backend_of("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_…")    -> "cudnn"
    attention_backend_of("nsa_range_forward_kernel")                               -> "nsa_range"
    attention_backend_of("aten::mm")                                               -> None

Names are those of torch 2.11 to 2.13 on CPUs and on GPUs from Ampere to Hopper. Attention that is written out has no name of its own: it
shows by a softmax. SDPA's math backend is the same operations below one operator, which a replayed CUDA graph no longer shows. A kernel of
a recipe's own is told by how its name begins.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_PATTERNS = (
    # cuDNN calls its kernels flash, too: it comes first.
    ("cudnn", r"cudnn_generated_\w*sdpa|cudnn_attention|CudnnAttention"),
    ("flex", r"flex_attention|FlexAttention"),
    ("efficient", r"fmha_cutlass[FB]|PyTorchMemEffAttention|efficient_attention|EfficientAttention"),
    ("flash", r"pytorch_flash::|\bflash_(?:fwd|bwd)_|FlashAttn|_flash_attention(?:_|$)|FlashAttention"),
    ("math", r"_scaled_dot_product_attention_math"),
    (
        "eager",
        r"softmax_warp_(?:forward|backward)|cunn_SoftMax(?:Forward|Backward)|aten::_softmax\b|aten::_safe_softmax\b",
    ),
)
_LOG_SOFTMAX = re.compile(r"LogSoftMax|softmax_warp_(?:forward|backward)<[^<>]*, \d+, true\b")
"""A softmax with a logarithm is a loss, not an attention."""
OWN = ("nsa_range", "nsa_chosen", "nsa_score")
"""how the names of the kernels begin that come with our recipes; each is a backend of its own"""


def is_own(backend: str) -> bool:
    """Whether it is a recipe's, and none of torch's."""
    return backend != "torch" and all(backend != name for name, _ in _PATTERNS)


def attention_backend_of(kernel_name: str, own: Collection[str] = OWN) -> str | None:
    """flash, cudnn, efficient, math, eager, flex, or one of `own`; None: nothing that only attention has."""
    for beginning in own:
        if f"{kernel_name}_".startswith(f"{beginning}_"):
            return beginning
    if _LOG_SOFTMAX.search(kernel_name):
        return None
    return next((backend for backend, pattern in _PATTERNS if re.search(pattern, kernel_name)), None)


@dataclass(frozen=True)
class Seen:
    """What a profile showed of one backend."""

    backend: str
    names: tuple[str, ...]
    count: int
    time_ms: float


def find_attention(rows: Iterable[tuple[str, int, float]], own: Collection[str] = OWN) -> list[Seen]:
    """Every backend among the (name, calls, own time in ms) of a profile, the longest first.

    A softmax may be part of something else, and is of math: it counts as eager only where no other attention is seen.
    """
    found: dict[str, list[tuple[str, int, float]]] = {}
    for name, count, time_ms in rows:
        backend = attention_backend_of(name, own)
        # What autograd wraps around an operator of the backward is no operator of its own.
        if backend is not None and not re.search(r"Backward\d+$", name):
            found.setdefault(backend, []).append((name, count, time_ms))
    if len(found) > 1:
        found.pop("eager", None)
    seen = [
        Seen(backend, tuple(row[0] for row in mine), sum(row[1] for row in mine), sum(row[2] for row in mine))
        for backend, mine in found.items()
    ]
    return sorted(seen, key=lambda each: -each.time_ms)
