"""What ranks measure of the machine they run on: collectives of several sizes, and a matrix product on each device at the same time."""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from paceline.config.sections import Parallel
from paceline.engine.device_stats import peak_flops
from paceline.engine.ranks import Ranks, join_ranks
from paceline.errors import DesyncError

_TIMEOUT_S = 20.0
_FEWEST = 3
_WINDOWS = 5
_UNSUPPORTED = re.compile(r"unsupported|not (?:supported|support|implemented)", re.IGNORECASE)


def probe(wish: dict[str, Any]) -> dict[str, Any] | None:
    """Rank 0's account; None on the other ranks."""
    ranks = join_ranks(Parallel(backend=wish["backend"], timeout_s=_TIMEOUT_S))
    found: dict[str, Any] = {
        "backend": ranks.backend,
        "reason": ranks.backend_reason,
        "world_size": ranks.world_size,
        "torch": torch.__version__,
        "nccl": _nccl_version() if ranks.device.type == "cuda" else None,
        "collectives": [],
        "products": _products(ranks) if wish["product"] else [],
    }
    if ranks.has_group:
        collectives = _Collectives(ranks, wish["repeats"], wish["budget_s"])
        found["collectives"] = [one for size in wish["sizes"] for one in collectives.measure(wish["ops"], size)]
    ranks.close()
    return found if ranks.is_first else None


def _nccl_version() -> str | None:
    with contextlib.suppress(Exception):  # a build without NCCL raises whatever it likes
        return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return None


class _Collectives:
    """All-reduce, all-gather and reduce-scatter of several sizes, each repeated; a repetition takes as long as on its slowest rank."""

    def __init__(self, ranks: Ranks, repeats: int, budget_s: float | None) -> None:
        """As often as `repeats` says, or for about `budget_s` per size and operation where that is less."""
        self._ranks = ranks
        self._repeats = repeats
        self._budget_s = budget_s

    def measure(self, ops: Sequence[str], num_bytes: int) -> Iterator[dict[str, Any]]:
        """`num_bytes` is the whole buffer: what is reduced, or gathered, or scattered; rounded up to a number for each rank."""
        count = self._ranks.world_size
        length = -(-num_bytes // (4 * count)) * count
        whole = torch.empty(length, device=self._ranks.device)
        part = torch.empty(length // count, device=self._ranks.device)
        operations = _operations(whole, part)
        for op in ops:
            record = {"op": op, "bytes": 4 * length}
            try:
                self._check(op, operations[op], whole, part)
            except (RuntimeError, NotImplementedError) as error:
                # On all ranks alike: gloo does not have every operation for every device.
                if not _UNSUPPORTED.search(str(error)):
                    raise
                yield record | {"seconds": [], "refused": str(error).splitlines()[0]}
                continue
            yield record | {"seconds": self._repeat(operations[op]), "refused": None}

    def _check(self, op: str, run: Callable[[], Any], whole: torch.Tensor, part: torch.Tensor) -> None:
        """One time with known numbers: rank r holds r + 1, and their sum is known."""
        count = self._ranks.world_size
        whole.fill_(self._ranks.rank + 1)
        part.fill_(self._ranks.rank + 1)
        run()
        total = count * (count + 1) / 2
        if op == "all_gather":
            expected = [float(rank + 1) for rank in range(count)]
            found = whole.view(count, -1)[:, -1].tolist()
        else:
            expected, result = [total, total], part if op == "reduce_scatter" else whole
            found = [float(result.min()), float(result.max())]
        if found != expected:
            what = f"{op} over {self._ranks.backend} gave {found} in place of {expected} on rank {self._ranks.rank}"
            raise DesyncError(
                what, f"{whole.nbytes} bytes", "do not train on this machine; look for a broken link or GPU"
            )

    def _repeat(self, run: Callable[[], Any]) -> list[float]:
        # All ranks must agree on how often: the slowest one's time decides.
        once = self._slowest([self._time(run)])[0]
        times = self._repeats
        if self._budget_s is not None:
            times = max(_FEWEST, min(times, int(self._budget_s / max(once, 1e-9))))
        return self._slowest([self._time(run) for _ in range(times)])

    def _slowest(self, seconds: list[float]) -> list[float]:
        gathered: list[float] = self._ranks.gather_floats(seconds).amax(0).tolist()
        return gathered

    def _time(self, run: Callable[[], Any]) -> float:
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began


def _operations(whole: torch.Tensor, part: torch.Tensor) -> dict[str, Callable[[], Any]]:
    # Renamed in torch 2.13; the old names are all that 2.11 has.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: gather(whole, part),
        "reduce_scatter": lambda: scatter(part, whole),
    }


def _products(ranks: Ranks) -> list[dict[str, Any]]:
    """Products of square matrices on every rank at the same time, as in training."""
    is_gpu = ranks.device.type == "cuda"
    is_new = is_gpu and torch.cuda.get_device_capability(ranks.device) >= (8, 0)
    dtype = torch.bfloat16 if is_new else torch.float16 if is_gpu else torch.float32
    size, times = (8192, 10) if is_gpu else (512, 8)
    generator = torch.Generator().manual_seed(ranks.rank)
    left = torch.rand(size, size, generator=generator).to(ranks.device, dtype)
    seconds = []
    for window in range(_WINDOWS + 1):
        ranks.gather_floats([0.0])  # together
        began = time.perf_counter()
        for _ in range(times):
            left @ left
        if is_gpu:
            torch.cuda.synchronize()
        if window:  # the first one warms up
            seconds.append(time.perf_counter() - began)
    flops = 2 * size**3 * times / statistics.median(seconds)
    found = []
    for rank, (each,) in enumerate(ranks.gather_floats([flops]).tolist()):
        index = rank % torch.cuda.device_count() if is_gpu else 0
        device = torch.device("cuda", index) if is_gpu else torch.device("cpu")
        name = torch.cuda.get_device_name(device) if is_gpu else "CPU"
        peak = peak_flops(device, "fp16", tf32=False) if is_gpu else None
        kind = str(dtype).removeprefix("torch.")
        record = {"rank": rank, "device": str(device), "name": name, "size": size, "type": kind}
        found.append(record | {"flops": each, "peak_flops": peak})
    return found
