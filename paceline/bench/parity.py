"""Whether each path of native sparse attention computes here what the reference says, and whether the fast one is fast; one line of JSON.

    python -m paceline.bench.parity --seed 0 --length 2048

Outputs and all gradients against the reference in float64, with the selected blocks given: near-ties flip in lower precision. An error is the
norm of the difference over the norm of what is right. Decoding with the caches is held to it by itself, and so is selection in fp32: the
share of queries that choose other blocks, which only near-ties may.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paceline.bench.answering import answer, end
from paceline.bench.stopwatch import stopwatch
from paceline.engine.out_of_memory import is_out_of_memory
from paceline.errors import UsageError
from paceline.recipes.nsa import reference
from paceline.recipes.nsa.attention import Shape, SparseAttention, reference_sizes
from paceline.recipes.nsa.cache import SparseCache
from paceline.recipes.nsa.config import Model
from paceline.recipes.nsa.moment import build_moment
from paceline.recipes.nsa.paths import build_stages, fast_refusal
from paceline.recipes.nsa.pattern import Frame, Pattern, one_document

LIMITS = {"fp64": 1e-12, "fp32": 1e-5, "bf16": 2e-2}
_NEAR_TIES = 0.005
"""of the queries may choose other blocks in fp32"""
_SMALL = Pattern(16, 8, 16, 5, 48)
"""so that rows that the reference can walk through have blocks to choose from"""
CASES: dict[str, tuple[int, int, int, Pattern, tuple[int, ...]]] = {
    "one token": (12, 2, 64, Pattern(), (1,)),
    "shorter than a block": (12, 2, 64, Pattern(), (31,)),
    "the recipe's sizes": (12, 2, 64, Pattern(), (300,)),
    "group 1, packed": (2, 2, 64, _SMALL, (150, 1, 105)),
    "group 2, 128 wide": (4, 2, 128, _SMALL, (201,)),
    "group 6, packed": (12, 2, 64, _SMALL, (33, 223)),
    "group 16": (16, 1, 64, _SMALL, (256,)),
}
"""heads, groups, width of a head, sizes, lengths of the documents in a row"""


def measure(seed: int, length: int) -> dict[str, Any]:
    """Errors of every path that can run here, and how long each takes for `length` tokens of the recipe's shape."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        # Rounding to TensorFloat-32 is not what fp32 is held to.
        torch.backends.cuda.matmul.allow_tf32 = False
    refusal = fast_refusal(device.type, Model())
    paths = ["torch", *([] if refusal else ["fast"])]
    try:
        times = {path: _time(path, length, device) for path in paths}
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        what = f"no memory for a layer of {length:,} tokens: {str(error).splitlines()[0]}"
        raise UsageError(what, "--length", "give fewer tokens") from error
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the reference's tensors are small: a second thread would mostly wait for the first
    rows = [row for name in CASES for row in compare_case(name, paths, device, seed)]
    torch.set_num_threads(num_threads)
    is_faster = None if refusal else times["fast"]["total_ms"] < times["torch"]["total_ms"]
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "seed": seed,
        "fast": refusal or "as it can run here",
        "rows": rows,
        "length": length,
        "times": times,
        "fast_is_faster": is_faster,
        "ok": all(row["ok"] for row in rows) and is_faster is not False,
    }


def compare_case(name: str, paths: list[str], device: torch.device, seed: int) -> list[dict[str, Any]]:
    """A row per path and type, and one for decoding."""
    heads, groups, width, pattern, lengths = CASES[name]
    shape = Shape(96, heads, groups, width, pattern, compression_hidden=32)
    torch.manual_seed(seed)
    exact = SparseAttention(shape, None).double().to(device)
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    positions = torch.cat([torch.arange(each) for each in lengths])[None].to(device)
    hidden = torch.randn(1, sum(lengths), shape.width, dtype=torch.float64, device=device)
    upstream = torch.randn_like(hidden)
    expected, blocks, gradients = _by_reference(exact, hidden, positions, upstream)
    weights = exact.state_dict()
    rows = []
    for path in paths:
        for kind, limit in LIMITS.items():
            if path == "fast" and kind == "fp64":
                continue
            attention = SparseAttention(shape, build_stages(path)).double().to(device)
            attention.load_state_dict(weights)
            errors = _errors(attention, kind, hidden, positions, upstream, blocks, expected, gradients)
            # What is not a number is never the largest by itself.
            worst = max(errors, key=lambda what: (math.isnan(errors[what]), errors[what]))
            rows.append(_row(name, path, kind, worst, errors[worst], limit))
        chosen = _select(shape, path, weights, hidden, positions)
        differing = float((chosen != blocks).any(-1).double().mean())
        rows.append(_row(name, path, "fp32", "selected blocks", differing, _NEAR_TIES))
    if len(lengths) == 1:
        found = _decode(exact, hidden)
        rows.append(_row(name, "decode", "fp64", "output", _relative(found, expected), 1e-9))
    return rows


def _select(shape: Shape, path: str, weights: Mapping[str, Tensor], hidden: Tensor, positions: Tensor) -> Tensor:
    """The blocks that a path chooses by itself, in fp32."""
    stages, chosen = build_stages(path), []
    assert stages is not None
    of_path = stages.select

    def select(query_BTHD: Tensor, keys_BNGD: Tensor, logsum_BHT: Tensor, frame: Frame, pattern: Pattern) -> Tensor:
        chosen.append(of_path(query_BTHD, keys_BNGD, logsum_BHT, frame, pattern))
        return chosen[-1]

    attention = SparseAttention(shape, replace(stages, select=select)).to(hidden.device)
    attention.load_state_dict(weights)
    with torch.no_grad():
        attention(hidden.float(), attention.build_frame(positions, torch.float32))
    return chosen[0]


def _row(case: str, path: str, kind: str, worst: str, error: float, limit: float) -> dict[str, Any]:
    return {
        "case": case,
        "path": path,
        "precision": kind,
        "worst": worst,
        "error": error,
        "limit": limit,
        "ok": error <= limit,
    }


def _by_reference(
    attention: SparseAttention, hidden: Tensor, positions: Tensor, upstream: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor | None]]:
    sizes = reference_sizes(attention.shape)
    hidden = hidden.clone().requires_grad_()
    starts = (torch.arange(positions.shape[1], device=positions.device) - positions[0]).tolist()
    weights = dict(attention.named_parameters())
    mixed, blocks = reference.attend(hidden[0], weights, starts, sizes)
    found = torch.autograd.grad(mixed, [hidden, *weights.values()], upstream[0], allow_unused=True)
    return mixed.detach()[None], blocks[None], dict(zip(["hidden", *weights], found, strict=True))


def _errors(
    attention: SparseAttention,
    kind: str,
    hidden: Tensor,
    positions: Tensor,
    upstream: Tensor,
    blocks: Tensor,
    expected: Tensor,
    gradients: Mapping[str, Tensor | None],
) -> dict[str, float]:
    """Of the output and of every gradient. Where nothing but rounding flows, what was found is held against the largest gradient's norm."""
    stored = torch.float64 if kind == "fp64" else torch.float32
    attention = attention.to(stored)
    given = hidden.detach().to(stored, copy=True).requires_grad_()
    frame = attention.build_frame(positions, stored)
    with torch.autocast(hidden.device.type, torch.bfloat16, enabled=kind == "bf16"):
        found = attention(given, frame, blocks_BTGn=blocks)
    found.backward(upstream.to(found.dtype))
    errors = {"output": _relative(found, expected)}
    norms = {name: 0.0 if right is None else float(right.norm()) for name, right in gradients.items()}
    most = max(norms.values())
    for name, parameter in [("hidden", given), *attention.named_parameters()]:
        right, grad = gradients[name], parameter.grad
        if right is None or norms[name] < 1e-12 * most:
            errors[name] = 0.0 if grad is None else float(grad.double().norm()) / most
        else:
            errors[name] = math.inf if grad is None else _relative(grad, right)
    return errors


def _decode(exact: SparseAttention, hidden: Tensor) -> Tensor:
    """Token by token, with a cache, the blocks selected by itself."""
    cache, found = SparseCache(exact.shape.pattern), []
    with torch.no_grad():
        for t in range(hidden.shape[1]):
            position = torch.tensor([t], device=hidden.device)
            moment = build_moment(position, exact.shape.pattern, exact.shape.head_width, hidden.dtype)
            found.append(exact.decode(hidden[:, t : t + 1], moment, cache))
    return torch.cat(found, dim=1)


def _relative(found: Tensor, expected: Tensor) -> float:
    scale = expected.double().norm().clamp(min=1e-30)
    return float((found.detach().double() - expected.double()).norm() / scale)


def _time(path: str, length: int, device: torch.device) -> dict[str, float]:
    """The median of a few forwards and backwards of one layer of the recipe's shape, bf16 on a GPU."""
    shape = Shape(768, 12, 2, 64)
    attention = SparseAttention(shape, build_stages(path)).to(device)
    frame = attention.build_frame(one_document(1, length, device), torch.float32)
    hidden = torch.randn(1, length, shape.width, device=device, requires_grad=True)
    forward_ms, backward_ms = [], []
    for _ in range(4):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            with stopwatch(device) as clock:
                clock.start()
                mixed = attention(hidden, frame)
                clock.stop()
            forward_ms.append(clock.total_ms)
        with stopwatch(device) as clock:
            clock.start()
            mixed.sum().backward()
            clock.stop()
        backward_ms.append(clock.total_ms)
    # The first one compiles and allocates.
    forward, backward = (statistics.median(times[1:]) for times in (forward_ms, backward_ms))
    return {"forward_ms": forward, "backward_ms": backward, "total_ms": forward + backward}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.parity", allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=2048)
    arguments = parser.parse_args(argv)
    return answer(lambda: measure(arguments.seed, arguments.length))


if __name__ == "__main__":
    end(main)
