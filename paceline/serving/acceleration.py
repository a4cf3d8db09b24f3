"""A model compiled for serving, which has to prove itself: the same results as the model as written, and how much faster.

    program, proof = accelerate(model, batches, "bf16")
    proof.is_equal, proof.speed_up, proof.max_difference

Compiled for the shapes of the first batch; shapes are the caller's business. The two ways are measured in turn, batch by batch, so that what
else the machine does falls on both alike. Who does not prove itself is not used: `program` is None, and `proof.why` says why.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor

Batch = Mapping[str, Tensor]
Program = Callable[[Batch], Tensor]
Precision = Literal["fp32", "bf16"]

CLOSE: Mapping[Precision, float] = {"fp32": 1e-4, "bf16": 5e-2}
"""the largest difference between two outputs, relative to the largest output: operations of half precision round by up to 0.4 %"""
_LEAST_GAIN = 1.05
"""what is not that much faster is not worth its compilation"""
_LEAST_ROUNDS = 5


@dataclass(frozen=True)
class Proof:
    """What an acceleration is worth here."""

    precision: Precision
    is_equal: bool
    max_difference: float | None
    """relative to the largest output; None: there is nothing to compare, or it is not finite"""
    tolerance: float
    same_top: float
    """share of each row's ten best, by the last output, that are the ten best of the model as written, too"""
    eager_ms: float
    fast_ms: float
    compile_s: float
    why: str
    """why it is not used; empty where it is"""

    @property
    def speed_up(self) -> float:
        return self.eager_ms / self.fast_ms if self.fast_ms else 0.0


def accelerate(
    model: Program, batches: Sequence[Batch], precision: Precision = "fp32", seconds: float = 3.0
) -> tuple[Program | None, Proof]:
    """The program, where it is equal and faster, and its proof; measured for so many seconds."""
    import torch._inductor.config as inductor  # takes seconds: only where something is compiled

    def fast(batch: Batch) -> Tensor:
        # The modes that it was compiled in, whatever the caller's are.
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            return compiled(batch)

    def plain(batch: Batch) -> Tensor:
        with torch.no_grad():
            return model(batch)

    began = time.perf_counter()
    try:
        # Before each call torch would look whether the model has changed, which takes longer than some of its layers: one that serves does not.
        compiled = torch.compile(_alone(model), dynamic=False, options={"guard_filter_fn": _look_at_the_batch})
        # Weights are constants of a program that serves: they are laid out for the kernels once. What calls the kernels is compiled, too: from
        # Python the calls of a small model take a tenth of its time.
        with inductor.patch(freezing=True, cpp_wrapper=True):
            fast(batches[0])
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        why = f"it cannot be compiled here: {type(error).__name__}: {first}"
        return None, Proof(precision, False, None, CLOSE[precision], 0.0, 0.0, 0.0, 0.0, why)
    compile_s = time.perf_counter() - began
    pairs = [(plain(batch), fast(batch).float()) for batch in batches]
    difference = max(_difference(*pair) for pair in pairs)
    eager_ms, fast_ms = _measure(plain, fast, batches, seconds)
    is_equal = difference <= CLOSE[precision]
    why = "" if is_equal else f"its results differ by {difference:.2g}, more than {CLOSE[precision]:g}"
    if is_equal and eager_ms < fast_ms * _LEAST_GAIN:
        why = f"it is not faster: {fast_ms:.2f} ms against {eager_ms:.2f} ms"
    same = statistics.fmean(_same_top(*pair) for pair in pairs)
    shown = difference if math.isfinite(difference) else None
    proof = Proof(precision, is_equal, shown, CLOSE[precision], same, eager_ms, fast_ms, compile_s, why)
    return (None if why else fast), proof


def _alone(model: Program) -> Program:
    """A function that shares its code with no other: torch keeps what it compiled by the code, where it would find another model's."""

    def call(batch: Batch) -> Tensor:
        return model(batch)

    return FunctionType(call.__code__.replace(), globals(), "call", None, call.__closure__)


def _look_at_the_batch(guards: Sequence[Any]) -> list[bool]:
    """Which of its assumptions torch looks at before each call: those about the argument `batch` of `_alone`."""
    return [guard.name.startswith("batch") for guard in guards]


def _difference(plain: Tensor, fast: Tensor) -> float:
    gap = ((plain - fast).abs().amax() / plain.abs().amax().clamp(min=1e-12)).item()
    return gap if gap == gap else float("inf")


def _same_top(plain: Tensor, fast: Tensor, count: int = 10) -> float:
    """Outputs are (rows, candidates, numbers)."""
    count = min(count, plain.shape[1])
    found = [set(row.tolist()) for each in (plain, fast) for row in each[..., -1].topk(count, 1).indices]
    half = len(found) // 2
    return statistics.fmean(len(a & b) / count for a, b in zip(found[:half], found[half:], strict=True))


def _measure(plain: Program, fast: Program, batches: Sequence[Batch], seconds: float) -> tuple[float, float]:
    """Medians in milliseconds."""
    times: tuple[list[float], list[float]] = ([], [])
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < deadline:
        rounds += 1
        for batch in batches:
            for way, spans in zip((plain, fast), times, strict=True):
                began = time.perf_counter()
                way(batch)
                spans.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])
