"""When memory runs out: how much was asked for, who has the rest, and what to change; on a GPU with a picture of the allocator.

    OutOfMemoryError: the GPU ran out of memory: 2.00 GiB asked for, 0.41 GiB free of 139.72 GiB; …
      where: rank 0, step 3, forward; batch: items 64 × 200, targets 64 × 200; a micro-step of 64 samples of train.global_batch=128
      do:    set train.micro_batch=32 (the global batch stays the same), or train.activation_checkpointing=true

The picture is JSON (memory/rank_00000.json): torch's own is a pickle, and nothing in a run directory may be able to run.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any

import torch

from paceline.config.contradictions import Facts, check
from paceline.engine.context import Context
from paceline.errors import OutOfMemoryError
from paceline.files import write_json
from paceline.telemetry.layout import SCHEMA

_GIB = 2**30
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_WORDS = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "Unable to allocate")
_BATCH = "batch: "
_MOST_PROCESSES = 5


def is_out_of_memory(error: BaseException) -> bool:
    """Also what the C++ side of torch says in an ordinary RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)


def name_batch(error: BaseException, batch: Any) -> None:
    """Notes the shapes of the batch that an error came up with; kept as words, so that the batch itself can go."""
    if isinstance(batch, dict):
        shapes = {name: value.shape for name, value in batch.items() if isinstance(value, torch.Tensor)}
        error.add_note(_BATCH + ", ".join(f"{name} {' × '.join(map(str, shape))}" for name, shape in shapes.items()))


def explain_out_of_memory(error: BaseException, context: Context) -> OutOfMemoryError:
    """The error for the operator; writes what is known about the memory into the run directory first."""
    device, pulse, rank = context.ranks.device, context.pulse, context.ranks.rank
    is_cuda = device.type == "cuda" and not isinstance(error, MemoryError) and "DefaultCPUAllocator" not in str(error)
    reading = _read_gpu(device) if is_cuda else _read_host()
    reading |= {"asked_bytes": asked_bytes(str(error)), "error": str(error).strip().splitlines()[:3]}
    batch = next((note for note in getattr(error, "__notes__", ()) if note.startswith(_BATCH)), "")
    place = {"rank": rank, "attempt": context.attempt, "step": pulse.step, "phase": pulse.phase, "batch": batch}
    where = [f"rank {rank}, step {pulse.step}, {pulse.phase}", batch, _say_sizes(context)]
    path = context.layout.memory(rank)
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        write_json(path, {"v": SCHEMA, "time": time.time()} | place | reading)
        where.append(str(path))
    who = f"the GPU ({reading['device']})" if is_cuda else "this machine"
    what = f"{who} ran out of memory: {_say_memory(reading)}"
    return OutOfMemoryError(what, "; ".join(filter(None, where)), _advise(context, reading))


def asked_bytes(text: str) -> int | None:
    """What an allocator was asked for, in the words of CUDA's, the CPU's, or numpy's."""
    match = re.search(r"(?:ried to allocate|Unable to allocate) ([\d.]+) (bytes|[KMGTP]iB)", text)
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


def _read_gpu(device: torch.device) -> dict[str, Any]:
    free, total = torch.cuda.mem_get_info(device)
    snapshot = torch.cuda.memory._snapshot(device)
    segments = [
        {
            "bytes": segment["total_size"],
            "allocated_bytes": segment["allocated_size"],
            "kind": segment["segment_type"],
            "blocks": [[block["size"], block["state"]] for block in segment["blocks"]],
        }
        for segment in snapshot["segments"]
    ]
    return {
        "device": torch.cuda.get_device_name(device),
        "free_bytes": free,
        "total_bytes": total,
        "allocated_bytes": torch.cuda.memory_allocated(device),
        "reserved_bytes": torch.cuda.memory_reserved(device),
        "peak_bytes": torch.cuda.max_memory_allocated(device),
        "processes": _gpu_processes(device),
        "stats": torch.cuda.memory_stats(device),
        "segments": sorted(segments, key=lambda segment: -segment["bytes"]),
    }


def _gpu_processes(device: torch.device) -> list[dict[str, int]]:
    """Who else is on the GPU, as far as the driver tells (not from inside some containers)."""
    text = ""
    with contextlib.suppress(Exception):  # NVML's errors have no common base with torch's
        text = torch.cuda.list_gpu_processes(device)
    found = re.findall(r"process\s+(\d+) uses\s+([\d.]+) MB", text)
    others = [{"pid": int(pid), "bytes": int(float(size) * 2**20)} for pid, size in found if int(pid) != os.getpid()]
    return sorted(others, key=lambda process: -process["bytes"])


def _read_host() -> dict[str, Any]:
    import psutil

    memory, own = psutil.virtual_memory(), psutil.Process().memory_info()
    sizes = {p.pid: p.info["memory_info"].rss for p in psutil.process_iter(["memory_info"]) if p.info["memory_info"]}
    sizes.pop(os.getpid(), None)
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:_MOST_PROCESSES]
    return {
        "device": "cpu",
        "free_bytes": memory.available,
        "total_bytes": memory.total,
        "allocated_bytes": own.rss,
        "reserved_bytes": own.rss,
        "processes": [{"pid": pid, "bytes": size} for pid, size in largest],
    }


def _say_memory(reading: dict[str, Any]) -> str:
    asked = reading["asked_bytes"]
    words = [f"{_gib(asked)} asked for"] if asked is not None else []
    words.append(f"{_gib(reading['free_bytes'])} free of {_gib(reading['total_bytes'])}")
    words.append(f"{_gib(reading['allocated_bytes'])} allocated by this rank")
    unused = reading["reserved_bytes"] - reading["allocated_bytes"]
    if unused:
        words.append(f"{_gib(unused)} reserved besides")
    shown = [f"process {process['pid']} has {_gib(process['bytes'])}" for process in reading["processes"][:2]]
    return ", ".join([*words, *shown])


def _say_sizes(context: Context) -> str:
    plan = context.batch_plan
    return f"{plan.largest_micro_batch} samples per micro-step at most, train.global_batch={plan.global_batch}"


def _advise(context: Context, reading: dict[str, Any]) -> str:
    config, plan = context.config, context.batch_plan
    ways = []
    if context.pulse.phase == "evaluate":
        ways.append(f"evaluate.block={max(1, config.evaluate.block // 2)}")
    else:
        half, stage = plan.largest_micro_batch // 2, config.parallel.zero_stage + 1
        if half and _is_allowed(context, "train", micro_batch=half):
            ways.append(f"train.micro_batch={half} (the global batch stays the same)")
        if not config.train.activation_checkpointing and _is_allowed(context, "train", activation_checkpointing=True):
            ways.append("train.activation_checkpointing=true")
        if context.ranks.world_size > 1 and stage <= 3 and _is_allowed(context, "parallel", zero_stage=stage):
            ways.append(f"parallel.zero_stage={stage} (the ranks share out more)")
    asked, unused = reading["asked_bytes"], reading["reserved_bytes"] - reading["allocated_bytes"]
    if asked is not None and unused > asked:
        ways.append(
            "launch.env={PYTORCH_ALLOC_CONF: 'expandable_segments:True'} (much is reserved in pieces too small)"
        )
    return "set " + ", or ".join(ways) if ways else "use a smaller model, or more memory"


def _is_allowed(context: Context, section: str, **changes: Any) -> bool:
    """Whether the configuration with these changes would not be refused."""
    changed = getattr(context.config, section).model_copy(update=changes)
    facts = Facts(context.ranks.world_size, torch.cuda.device_count())
    given = dict.fromkeys([*context.given, *(f"{section}.{key}" for key in changes)], "given")
    return not check(context.config.model_copy(update={section: changed}), given, facts)


def _gib(count: int) -> str:
    return f"{count / _GIB:,.2f} GiB"
