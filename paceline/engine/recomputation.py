"""Activation checkpointing: what the model's blocks compute is not kept for backward, but computed again there.

A block is an element of an nn.ModuleList. Its forward runs a second time in backward, with the random numbers of the first: losses and
gradients stay as they are, bit for bit; memory between forward and backward holds the inputs of the blocks and one block's inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from paceline.engine.blocks import find_blocks
from paceline.errors import ConfigError
from paceline.telemetry.events import EventLog

_KEY = "train.activation_checkpointing"


def recompute_blocks(model: nn.Module, events: EventLog) -> None:
    """Makes every block of the model compute again in backward, and records how many; a model without blocks stays as it is."""
    blocks = dict(find_blocks(model))
    if not blocks:
        events.choice(_KEY, True, False, "the model has no blocks: no nn.ModuleList")
        return
    for name, block in blocks.items():
        counting = next((m for m in block.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)), None)
        if counting is not None and counting.track_running_stats:
            raise ConfigError(
                f"{_KEY}=true would count every batch twice in the running statistics of {type(counting).__name__} in {name}",
                _KEY,
                f"set {_KEY}=false, or use a norm without running statistics",
            )
        block.forward = functools.partial(_forward, block.forward)
    lists = sorted({name.rpartition(".")[0] for name in blocks})
    events.choice(_KEY, True, True, f"{len(blocks)} blocks ({', '.join(lists)})")


def _forward(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)
