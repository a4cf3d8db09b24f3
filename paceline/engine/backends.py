"""The backends of torch's SDPA: which of them can run a given attention, which one torch takes, and torch's own reasons against the rest.

    find_refusals(call, torch.float32, device)   -> {"cudnn": "a CPU has none", "flash": "… do not support non-zero dropout"}
    find_selected(call, torch.float32, device, ("flash", "math"))   -> "math"

torch is asked through the very function that chooses in every call, with tensors of the call's shapes and types, never filled or computed.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Collection, Iterator, Mapping

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from paceline.workload import AttentionCall

BACKENDS: Mapping[str, SDPBackend] = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
_NAMES = {int(backend.value): name for name, backend in BACKENDS.items()}
_ON_CPU = ("flash", "math")
NOT_ON_CPU = "a CPU has none"
_BEGINNINGS = {"flash": "flash", "cudnn": "cudnn", "efficient": "memory efficient"}
"""How torch begins its list of reasons against each: "Flash attention kernel not used because:"."""

States = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]
"""queries, keys, values, mask"""


def build_states(call: AttentionCall, dtype: torch.dtype, device: torch.device) -> States:
    """Tensors as the call has them, not filled: heads beside each other in memory, as projections leave them."""
    needs_grad = call.phase == "training"

    def build(length: int) -> torch.Tensor:
        laid_out = torch.empty(call.rows, length, call.heads, call.width, dtype=dtype, device=device)
        return laid_out.transpose(1, 2).requires_grad_(needs_grad)

    mask = None
    if call.mask != "none":
        kind = torch.bool if call.mask == "boolean" else dtype
        mask = torch.empty(1, 1, call.queries, call.keys, dtype=kind, device=device)
    return build(call.queries), build(call.keys), build(call.keys), mask


def find_refusals(call: AttentionCall, dtype: torch.dtype, device: torch.device) -> dict[str, str]:
    """Each backend that cannot run this call, with the reason."""
    states = build_states(call, dtype, device)
    refusals = {}
    for name in BACKENDS:
        if device.type == "cpu" and name not in _ON_CPU:
            refusals[name] = NOT_ON_CPU
            continue
        with warnings.catch_warnings(record=True) as caught, restricted([name]):
            warnings.simplefilter("always")
            try:
                _ask(call, states)
            except RuntimeError as error:
                texts = [str(each.message) for each in caught]
                refusals[name] = read_reason(name, texts) or str(error).strip().splitlines()[0]
    return refusals


def find_selected(
    call: AttentionCall, dtype: torch.dtype, device: torch.device, allowed: Collection[str] = tuple(BACKENDS)
) -> str:
    """The backend that torch takes among those allowed; at least one of them can run the call."""
    with restricted(allowed):
        return _NAMES[_ask(call, build_states(call, dtype, device))]


def read_reason(backend: str, texts: Collection[str]) -> str:
    """The reasons against one backend, out of all that torch warned about when nothing was left."""
    reasons, is_ours = [], False
    for text in texts:
        text = re.sub(r"\s*\(Triggered internally at .*", "", text, flags=re.DOTALL).strip()
        if text.endswith("because:"):
            is_ours = text.lower().startswith(_BEGINNINGS.get(backend, backend))
        elif is_ours:
            reasons.append(text.rstrip("."))
    return "; ".join(dict.fromkeys(reasons))


@contextlib.contextmanager
def restricted(names: Collection[str]) -> Iterator[None]:
    """SDPA may use these backends alone; for the whole process, until it is left."""
    with sdpa_kernel([BACKENDS[name] for name in names]):
        yield


def allow_only(names: Collection[str]) -> None:
    """SDPA may use these backends alone from now on, in the whole process: backward, recomputation and graphs included."""
    torch.backends.cuda.enable_flash_sdp("flash" in names)
    torch.backends.cuda.enable_cudnn_sdp("cudnn" in names)
    torch.backends.cuda.enable_mem_efficient_sdp("efficient" in names)
    torch.backends.cuda.enable_math_sdp("math" in names)


def _ask(call: AttentionCall, states: States) -> int:
    query, key, value, mask = states
    with torch.set_grad_enabled(call.phase == "training"):
        return int(torch._fused_sdp_choice(query, key, value, mask, call.dropout, call.is_causal))
