"""DeepSpeed itself: found, told which device it is on, and the few of its functions that a strategy needs.

Imported only where a configuration asks for it. Nothing of it is typed, so what is used of it is named here.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import os
from typing import Any

import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import nn

from paceline.engine.ranks import Ranks
from paceline.errors import ConfigError
from paceline.telemetry.events import EventLog


def load_deepspeed(ranks: Ranks, events: EventLog) -> Any:
    """The package, told which device it is on; an error that says how to get it where it is not installed."""
    if ranks.device.type == "cpu" and "DS_ACCELERATOR" not in os.environ:
        os.environ["DS_ACCELERATOR"] = "cpu"
        events.choice("DS_ACCELERATOR", "auto", "cpu", "no GPU, which DeepSpeed would look for")
    try:
        return importlib.import_module("deepspeed")
    except ModuleNotFoundError as error:
        if error.name != "deepspeed":
            raise
        raise ConfigError(
            "parallel.engine=deepspeed needs the package deepspeed, which is not installed",
            "parallel.engine",
            "pip install 'paceline[deepspeed]', or set parallel.engine=torch",
        ) from None


def build_engine(
    model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any], ranks: Ranks, timeout_s: float
) -> Any:
    """DeepSpeed's engine around a model and an optimizer, in the process group that is there."""
    if ranks.device.type == "cuda":
        # It takes the GPU of its local rank's number, at stage 3 in many places; with ranks that share one there is none of that number.
        os.environ["LOCAL_RANK"] = str(ranks.device.index)
    groups: Any = importlib.import_module("deepspeed.utils.groups")
    if groups._WORLD_GROUP is None:
        # Its collectives use a group of all ranks of its own; made here, it gives up when ours does.
        groups._WORLD_GROUP = dist.new_group(timeout=datetime.timedelta(seconds=timeout_s))
    initialize = importlib.import_module("deepspeed").initialize
    try:
        engine, *_ = initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(
            f"DeepSpeed refuses its configuration: {wrong}",
            "parallel.deepspeed",
            "give another value, or leave it out for DeepSpeed's default",
        ) from None
    return engine


def tools() -> Any:
    """What DeepSpeed has for the whole weights and moments behind its pieces."""
    return importlib.import_module("deepspeed.utils")


def gathered(weight: torch.Tensor, is_changed: bool = False) -> contextlib.AbstractContextManager[object]:
    """A weight of stage 3 whole on every rank inside; what rank 0 changes of it, all have afterwards."""
    zero = importlib.import_module("deepspeed").zero
    context: contextlib.AbstractContextManager[object] = zero.GatheredParameters(
        [weight], modifier_rank=0 if is_changed else None
    )
    return context


class Called(nn.Module):
    """The model as the engine calls it: under the autocast of whoever called the engine, which switches that off on its way."""

    def __init__(self, model: nn.Module, device_type: str) -> None:
        super().__init__()
        self.model = model
        self._device_type = device_type
        self._is_cast = False
        self._dtype = torch.float32

    def remember_autocast(self) -> None:
        """Before the engine is called."""
        self._is_cast = torch.is_autocast_enabled(self._device_type)
        self._dtype = torch.get_autocast_dtype(self._device_type)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        with torch.autocast(self._device_type, self._dtype) if self._is_cast else contextlib.nullcontext():
            return self.model(*arguments, **options)
