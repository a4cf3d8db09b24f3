"""Which strategy a run uses, and why."""

from __future__ import annotations

import torch

from paceline.config.sections import Parallel
from paceline.engine.ranks import Ranks
from paceline.engine.strategies.base import Strategy
from paceline.engine.strategies.ddp import DdpStrategy
from paceline.telemetry.events import EventLog


def build_strategy(model: torch.nn.Module, ranks: Ranks, parallel: Parallel, events: EventLog) -> Strategy:
    """The strategy for these ranks, with every choice recorded."""
    events.choice("parallel.backend", parallel.backend, ranks.backend, ranks.backend_reason)
    if not ranks.has_group:
        events.choice("strategy", "auto", "single", "one rank, no collectives")
        return Strategy(model)
    events.choice("strategy", "auto", "ddp", f"{ranks.world_size} ranks over {ranks.backend}")
    events.choice("parallel.bucket_mb", parallel.bucket_mb, parallel.bucket_mb, "as configured")
    events.choice("parallel.compression", parallel.compression, parallel.compression, "as configured")
    return DdpStrategy(model, ranks, parallel)
