"""What this machine offers: GPUs as the driver lists them. Never imports torch.

list_gpus()   -> [Gpu(index=0, uuid='GPU-…', name='NVIDIA H200', memory_gib=139.8)]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.errors import ConfigError


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver lists it; `index` is nvidia-smi's."""

    index: int
    uuid: str
    name: str
    memory_gib: float


def list_gpus() -> list[Gpu]:
    """Every GPU of the machine; empty where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory_gib = pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30
            gpus.append(
                Gpu(
                    index,
                    _text(pynvml.nvmlDeviceGetUUID(handle)),
                    _text(pynvml.nvmlDeviceGetName(handle)),
                    round(memory_gib, 1),
                )
            )
        return gpus
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def driver_version() -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return _text(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def visible_tokens(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[str]:
    """What CUDA_VISIBLE_DEVICES lets a program see: indices or UUIDs, cut at the first that does not exist, as CUDA does it."""
    inherited = environment.get("CUDA_VISIBLE_DEVICES")
    if inherited is None:
        return [str(gpu.index) for gpu in gpus]
    tokens: list[str] = []
    for token in (part.strip() for part in inherited.split(",")):
        if not _exists(token, gpus) or token in tokens:
            break
        tokens.append(token)
    return tokens


def _exists(token: str, gpus: Sequence[Gpu]) -> bool:
    if token.isdigit():
        return any(gpu.index == int(token) for gpu in gpus)
    # A slice of a GPU (MIG) is not in the list of GPUs; the driver knows it by this name.
    return (token.startswith("MIG-") and bool(gpus)) or (
        token.startswith("GPU-") and any(gpu.uuid.startswith(token) for gpu in gpus)
    )


def select_gpus(
    chosen: Sequence[int] | None, gpus: Sequence[Gpu], environment: Mapping[str, str], where: str = "launch.gpus"
) -> list[str]:
    """The CUDA_VISIBLE_DEVICES entries of the chosen GPUs; an index counts the visible ones, None takes them all."""
    tokens = visible_tokens(gpus, environment)
    if chosen is None:
        return tokens
    repeated = sorted({index for index in chosen if list(chosen).count(index) > 1})
    if repeated:
        raise ConfigError(f"launch.gpus names GPU {repeated[0]} twice", where, "name each GPU once")
    missing = [index for index in chosen if index >= len(tokens)]
    if missing:
        there = f"there are {len(tokens)}: {', '.join(map(str, range(len(tokens))))}" if tokens else "there is none"
        limited = environment.get("CUDA_VISIBLE_DEVICES")
        if limited is not None:
            there += f" (CUDA_VISIBLE_DEVICES={limited})"
        raise ConfigError(
            f"launch.gpus={list(chosen)} asks for GPU {', '.join(map(str, missing))}, but {there}",
            where,
            f"--gpus {','.join(map(str, range(len(tokens))))}" if tokens else "launch.gpus=[] to train on the CPU",
        )
    return [tokens[index] for index in chosen]
