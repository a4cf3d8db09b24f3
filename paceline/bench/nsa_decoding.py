"""How long one more token takes, for some lengths of the text before it: attention by itself, and the whole model, sparse and dense.

    measure_decoding(65536, 16, shape, "fast", device, repeats=5)      {"attention": 9.1, "attention_dense": 120.4, …}, in µs

Attention is that of 12 layers, each with keys and values of its own, divided by 12: so each reads memory as in a model, and not what the
last call left in the GPU's cache. Layers follow each other without anything between: where kernels begin while the one before runs, a layer's
first does, too, which it cannot in a model; that counts in their favour. The caches hold random states, without a prompt. On a GPU a graph is
replayed, unless a name says `launched`: there the host launches kernel by kernel. The dense model's graph stays at one length, which no text
does: it counts in its favour.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.bench.stopwatch import wait
from paceline.engine.backends import restricted
from paceline.engine.graph import Recorder
from paceline.engine.out_of_memory import is_out_of_memory
from paceline.recipes.nsa.attention import Shape
from paceline.recipes.nsa.block import Block, swiglu_width
from paceline.recipes.nsa.cache import DenseCache, SparseCache
from paceline.recipes.nsa.decoder import Decoder
from paceline.recipes.nsa.kernels.fast_cache import FastCache
from paceline.recipes.nsa.model import LanguageModel
from paceline.recipes.nsa.moment import build_moment
from paceline.recipes.nsa.paths import build_stages
from paceline.recipes.nsa.stages import States

ROWS = {"cuda": (1, 16), "cpu": (1,)}
"""texts at once"""
LAYERS = 12
VOCABULARY = 50_257
_CALLS = {"cuda": 20, "cpu": 2}
"""between two looks at the clock"""
_DENSE = {"cuda": ("flash", "cudnn", "efficient"), "cpu": ("flash",)}

Work = Callable[[], object]


def measure_decoding(
    length: int, rows: int, shape: Shape, path: str, device: torch.device, repeats: int
) -> dict[str, Any]:
    """µs per token of all rows, by name; `backend`: the fastest of SDPA. `length`: where the text ends. Refused where memory is short."""
    try:
        found: dict[str, Any] = {"refused": None}
        with torch.inference_mode():
            found |= _measure_sparse(length, rows, shape, path, device, repeats)
            found |= _measure_dense(length, rows, shape, device, repeats)
        return found
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return {"refused": str(error).splitlines()[0]}


def _measure_sparse(
    length: int, rows: int, shape: Shape, path: str, device: torch.device, repeats: int
) -> dict[str, float]:
    model = _build(shape, device, path=path)
    dtype = model.token_embedding.weight.dtype
    caches = model.build_caches()
    tokens_BTGD = torch.randn(
        rows, _prompt(length, device, repeats), shape.groups, shape.head_width, device=device, dtype=dtype
    )
    for block, cache in zip(model.blocks, caches, strict=True):
        assert isinstance(block, Block)
        assert not isinstance(cache, DenseCache)
        # By the type of its attribute a module could be anything.
        compress: Any = block.attention
        cache.append(States(*[tokens_BTGD] * 6), compress.compress_keys, compress.compress_values)
    del tokens_BTGD
    ids_B = torch.zeros(rows, dtype=torch.int64, device=device)
    found = {}
    if device.type == "cuda":
        decoder = Decoder(model, caches)
        us = _time(lambda: decoder.step(ids_B), device, repeats)
        # Else it was launched kernel by kernel, which is the next figure.
        if decoder.is_replaying:
            found["model"] = us
    launched = Decoder(model, caches, can_replay=False)
    found["model_launched"] = _time(lambda: launched.step(ids_B), device, repeats)
    query_B1HD = torch.randn(rows, 1, shape.heads, shape.head_width, device=device, dtype=dtype)
    gates_B1H3 = torch.rand(rows, 1, shape.heads, 3, device=device, dtype=dtype)
    position_1 = torch.full((1,), caches[0].length - 1, device=device)
    moment = build_moment(position_1, shape.pattern, shape.head_width, dtype)

    def attend() -> None:
        for cache in caches:
            if isinstance(cache, FastCache):
                cache.attend(gates_B1H3, moment)
            elif isinstance(cache, SparseCache):
                cache.attend(query_B1HD)

    can_replay = all(cache.can_replay for cache in caches)
    return found | _time_attention("attention", attend, can_replay, device, repeats)


def _measure_dense(length: int, rows: int, shape: Shape, device: torch.device, repeats: int) -> dict[str, Any]:
    model = _build(shape, device, kernel="sdpa")
    dtype = model.token_embedding.weight.dtype
    caches, prompt = [DenseCache() for _ in range(LAYERS)], _prompt(length, device, repeats)
    for cache in caches:
        keys, values = torch.randn(2, rows, prompt, shape.groups, shape.head_width, device=device, dtype=dtype)
        cache.append(keys, values)
    ids_B = torch.zeros(rows, dtype=torch.int64, device=device)
    decoder = Decoder(model, caches)
    found: dict[str, Any] = {"model_dense_launched": _time(lambda: decoder.step(ids_B), device, repeats)}
    if device.type == "cuda":
        found["model_dense"] = _time(_record(lambda: decoder.step(ids_B), device), device, repeats)
    query = torch.randn(rows, shape.heads, 1, shape.head_width, device=device, dtype=dtype)
    states: list[tuple[Tensor, Tensor]] = []
    for cache in caches:
        keys, values = cache.read()
        states.append((keys[:, :length].transpose(1, 2), values[:, :length].transpose(1, 2)))

    def attend() -> None:
        for keys, values in states:
            F.scaled_dot_product_attention(query, keys, values, enable_gqa=True)

    fastest: dict[str, Any] = {}
    for backend in _DENSE[device.type]:
        try:
            with restricted([backend]), warnings.catch_warnings():
                # torch warns of what it says again in its error.
                warnings.simplefilter("ignore")
                times: dict[str, Any] = _time_attention("attention_dense", attend, True, device, repeats)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            # torch has no such kernel for this call.
            continue
        if not fastest or min(times.values()) < min(fastest.values()):
            fastest, found["backend"] = times, backend
    return found | fastest


def _build(shape: Shape, device: torch.device, path: str | None = None, kernel: str | None = None) -> LanguageModel:
    stages = None if path is None else build_stages(path)
    with device:
        model = LanguageModel(
            VOCABULARY, LAYERS, shape, swiglu_width(shape.width), stages=stages, kernel=kernel, is_packed=False
        )
    return model.to(torch.bfloat16 if device.type == "cuda" else torch.float32).eval()


def _prompt(length: int, device: torch.device, repeats: int) -> int:
    """So long that the steps of both timings of a model end about where the text has its length."""
    return max(1, length - 2 * (1 + repeats * _CALLS[device.type]))


def _time_attention(name: str, attend: Work, can_replay: bool, device: torch.device, repeats: int) -> dict[str, float]:
    """Of one layer."""
    found = {f"{name}_launched": _time(attend, device, repeats) / LAYERS}
    if can_replay and device.type == "cuda":
        found[name] = _time(_record(attend, device), device, repeats) / LAYERS
    return found


def _record(work: Work, device: torch.device) -> Work:
    recorder = Recorder(device)
    recorder.warm_up(work)
    return recorder.record(work)[0]


def _time(work: Work, device: torch.device, repeats: int) -> float:
    """µs of a call, by the host's clock: the median of some windows. What compiles or records does so before."""
    calls, windows = _CALLS[device.type], []
    work()
    for _ in range(repeats):
        wait(device)
        began = time.perf_counter()
        for _ in range(calls):
            work()
        wait(device)
        windows.append((time.perf_counter() - began) * 1e6 / calls)
    return statistics.median(windows)
