"""Which strategy a run uses, and why."""

from __future__ import annotations

import torch

from paceline.config.sections import Parallel
from paceline.engine.ranks import Ranks
from paceline.engine.strategies.base import Strategy
from paceline.engine.strategies.ddp import DdpStrategy
from paceline.telemetry.events import EventLog


def choose_strategy(ranks: Ranks, parallel: Parallel, events: EventLog) -> type[Strategy]:
    """The kind of strategy for these ranks, recorded with the reason."""
    events.choice("parallel.backend", parallel.backend, ranks.backend, ranks.backend_reason)
    if not ranks.has_group:
        events.choice("strategy", "auto", Strategy.name, "one rank, no collectives")
        return Strategy
    kind = _find_kind(parallel) if ranks.world_size > 1 else DdpStrategy
    events.choice("strategy", "auto", kind.name, f"{ranks.world_size} ranks over {ranks.backend}")
    return kind


def build_strategy(
    kind: type[Strategy], model: torch.nn.Module, ranks: Ranks, parallel: Parallel, events: EventLog
) -> Strategy:
    """Takes over a model with its weights, wherever that lies, and records what it does with it."""
    strategy = kind.build(model, ranks, parallel, events)
    if ranks.world_size > 1:
        events.choice("parallel.zero_stage", parallel.zero_stage, parallel.zero_stage, strategy.sharing)
    return strategy


def _find_kind(parallel: Parallel) -> type[Strategy]:
    if parallel.engine == "deepspeed":
        from paceline.engine.strategies.deepspeed import find_kind

        return find_kind(parallel.zero_stage)
    if parallel.zero_stage == 0:
        return DdpStrategy
    if parallel.zero_stage == 1:
        from paceline.engine.strategies.zero1 import Zero1Strategy

        return Zero1Strategy
    # Imported where it is used: what it needs of torch takes a second, which no other run should wait for.
    from paceline.engine.strategies.fsdp import FsdpStrategy

    return FsdpStrategy
