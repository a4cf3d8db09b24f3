"""How long each stage of native sparse attention takes here, from short rows to long ones, beside dense attention; one line of JSON.

    python -m paceline.bench.nsa --length 2048 --length 65536 --repeats 5 [--decode]

Stages and dense attention by themselves, and whole layers of both: projections, RoPE, gates and all. One document per row; bf16 on a GPU.
Where it is asked for, one more token after a text of each length (nsa_decoding.py). Medians. A length whose rows do not fit into memory says
so, and so does a backend of dense attention that is not to be had for these heads here. From where on the sparse layer takes less than the
dense one is the break-even.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.bench.answering import answer, end
from paceline.bench.nsa_decoding import ROWS, measure_decoding
from paceline.bench.stopwatch import stopwatch
from paceline.engine.backends import find_refusals, restricted
from paceline.engine.out_of_memory import is_out_of_memory
from paceline.recipes.nsa.attention import DenseAttention, Shape, SparseAttention
from paceline.recipes.nsa.config import Model
from paceline.recipes.nsa.kernels.stage_runs import Run, build_runs, draw_inputs
from paceline.recipes.nsa.kernels.tile_store import Case
from paceline.recipes.nsa.paths import build_stages, choose_path
from paceline.recipes.nsa.pattern import one_document
from paceline.recipes.nsa.stages import STAGES
from paceline.workload import AttentionCall

LENGTHS = {"cuda": (2048, 4096, 8192, 16384, 32768, 65536, 131072), "cpu": (256, 512, 1024, 2048)}
"""where none are asked for"""
_DENSE = {"cuda": ("flash", "cudnn"), "cpu": ("flash",)}
_DTYPES = {"cuda": torch.bfloat16, "cpu": torch.float32}


def measure(lengths: Sequence[int], heads: int, groups: int, width: int, repeats: int, decodes: bool) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    path = choose_path("auto", device.type, Model(heads=heads, groups=groups, head_width=width), "warn")
    asked = sorted(lengths or LENGTHS[device.type])
    shape = Shape(heads * width, heads, groups, width)
    rows = [_measure_length(length, shape, path.name, device, repeats) for length in asked]
    dense = [backend for backend in _DENSE[device.type] if any(backend in row["times"] for row in rows)]
    for row in rows:
        row["decoding"] = {
            str(texts): measure_decoding(row["length"], texts, shape, path.name, device, repeats)
            for texts in (ROWS[device.type] if decodes else ())
        }
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "path": path.name,
        "reason": path.reason,
        "heads": heads,
        "groups": groups,
        "width": width,
        "repeats": repeats,
        "rows": rows,
        "break_even": {backend: find_break_even(rows, backend) for backend in dense},
    }


def find_break_even(rows: Sequence[dict[str, Any]], dense: str) -> int | None:
    """The first of the lengths from which on sparse attention takes less, forward and backward together; None: none of them."""
    found = None
    for row in reversed(rows):
        if dense not in row["times"]:
            continue
        if _total(row["times"]["layer"]) >= _total(row["times"][f"layer_{dense}"]):
            break
        found = row["length"]
    return found


def _total(times: dict[str, float]) -> float:
    return times["forward_ms"] + times["backward_ms"]


def _measure_length(length: int, shape: Shape, path: str, device: torch.device, repeats: int) -> dict[str, Any]:
    try:
        call = AttentionCall("training", 1, shape.heads, length, length, shape.head_width, is_causal=True)
        refusals = find_refusals(call, _DTYPES[device.type], device)
        dense_refused = {name: refusals[name] for name in _DENSE[device.type] if name in refusals}
        times = _time_stages(length, shape, path, device, repeats)
        layer = SparseAttention(shape, build_stages(path)).to(device)
        times["layer"] = _time(*_build_layer(layer, length, device), device, repeats)
        for backend in (name for name in _DENSE[device.type] if name not in dense_refused):
            times[backend] = _time(*_build_dense(length, shape, backend, device), device, repeats)
            twin = DenseAttention(shape, "sdpa").to(device)
            times[f"layer_{backend}"] = _time(*_build_layer(twin, length, device, backend), device, repeats)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return {"length": length, "refused": str(error).splitlines()[0], "dense_refused": {}, "times": {}}
    times["sparse"] = {key: sum(times[stage][key] for stage in STAGES) for key in ("forward_ms", "backward_ms")}
    return {"length": length, "refused": None, "dense_refused": dense_refused, "times": times}


def _time_stages(
    length: int, shape: Shape, path: str, device: torch.device, repeats: int
) -> dict[str, dict[str, float]]:
    stages, dtype = build_stages(path), str(_DTYPES[device.type]).removeprefix("torch.")
    assert stages is not None
    inputs = draw_inputs(Case(1, length, shape.heads, shape.groups, shape.head_width, dtype), stages, device)
    runs = build_runs(inputs, stages, inputs.frame)
    return {name: _time(forward, gradients, device, repeats) for name, (forward, gradients) in runs.items()}


def _build_dense(length: int, shape: Shape, backend: str, device: torch.device) -> Run:
    """Every head with keys of its own: that torch need not repeat those of a group counts in its favour."""
    query, keys, values = (
        torch.randn(1, length, shape.heads, shape.head_width, device=device, dtype=_DTYPES[device.type])
        .transpose(1, 2)
        .requires_grad_()
        for _ in range(3)
    )

    def attend() -> Sequence[Tensor]:
        with restricted([backend]):
            return [F.scaled_dot_product_attention(query, keys, values, is_causal=True)]

    return attend, [query, keys, values]


def _build_layer(
    layer: SparseAttention | DenseAttention, length: int, device: torch.device, backend: str | None = None
) -> Run:
    frame = layer.build_frame(one_document(1, length, device), torch.float32)
    hidden = torch.randn(1, length, layer.shape.width, device=device, requires_grad=True)

    def attend() -> Sequence[Tensor]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"))
            if backend is not None:
                stack.enter_context(restricted([backend]))
            return [layer(hidden, frame)]

    return attend, [hidden, *layer.parameters()]


def _time(
    forward: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor], device: torch.device, repeats: int
) -> dict[str, float]:
    """Medians; the first call, which compiles and allocates, is not among them."""
    forward_ms, backward_ms = [], []
    for _ in range(repeats + 1):
        with stopwatch(device) as clock:
            clock.start()
            found = forward()
            clock.stop()
        forward_ms.append(clock.total_ms)
        if inputs:
            upstream = [torch.ones_like(each) for each in found]
            with stopwatch(device) as clock:
                clock.start()
                torch.autograd.grad(found, inputs, upstream)
                clock.stop()
            backward_ms.append(clock.total_ms)
    return {
        "forward_ms": statistics.median(forward_ms[1:]),
        "backward_ms": statistics.median(backward_ms[1:]) if inputs else 0.0,
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.nsa", allow_abbrev=False)
    parser.add_argument("--length", type=int, action="append", default=[])
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--decode", action="store_true")
    given = parser.parse_args(argv)
    return answer(lambda: measure(given.length, given.heads, given.groups, given.width, given.repeats, given.decode))


if __name__ == "__main__":
    end(main)
