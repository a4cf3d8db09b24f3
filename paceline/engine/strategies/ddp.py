"""Data parallelism with DistributedDataParallel: every rank holds the model, gradients are averaged in buckets during backward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.config.sections import Parallel
from paceline.engine.compression import build_compression
from paceline.engine.powersgd import PowerSgd
from paceline.engine.ranks import Ranks
from paceline.engine.strategies.base import Strategy
from paceline.telemetry.events import EventLog


class DdpStrategy(Strategy):
    """DistributedDataParallel around the model."""

    name = "ddp"
    sharing = "every rank holds everything"
    rebuilds_buckets = True

    def __init__(self, model: torch.nn.Module, ranks: Ranks, parallel: Parallel) -> None:
        super().__init__(model)
        self._world_size = ranks.world_size
        # What is not saved follows from the configuration, alike on every rank: not worth sending at every forward.
        ignored = [*_unsaved_buffers(model), *_names_of(model, self.tables.values())]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)  # type: ignore[no-untyped-call]
        wrapper = DistributedDataParallel(
            model,
            device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None,
            bucket_cap_mb=parallel.bucket_mb,
            static_graph=parallel.static_graph,
            find_unused_parameters=parallel.find_unused,
            gradient_as_bucket_view=parallel.bucket_view,
        )
        self._powersgd: PowerSgd | None = None
        if parallel.compression == "powersgd":
            self._powersgd = PowerSgd(parallel.powersgd)
            wrapper.register_comm_hook(None, self._powersgd.build_hook())
        elif parallel.compression != "none":
            wrapper.register_comm_hook(None, build_compression(parallel.compression, ranks.world_size))
        self._wrapper = wrapper
        self.module = wrapper

    @classmethod
    def build(cls, model: torch.nn.Module, ranks: Ranks, parallel: Parallel, events: EventLog) -> DdpStrategy:
        events.choice("parallel.bucket_mb", parallel.bucket_mb, parallel.bucket_mb, "as configured")
        events.choice("parallel.compression", parallel.compression, parallel.compression, "as configured")
        return cls(model.to(ranks.device), ranks, parallel)

    @property
    def divisor(self) -> int:
        return self._world_size

    @property
    def powersgd(self) -> PowerSgd | None:
        return self._powersgd

    def accumulating(self) -> contextlib.AbstractContextManager[object]:
        return self._wrapper.no_sync()

    def watch_waits(self, every: int) -> bool:
        self._wrapper._set_ddp_runtime_logging_sample_rate(every)  # type: ignore[no-untyped-call]
        return True

    def read_wait(self) -> tuple[int, float] | None:
        # Its numbers alone, at every step: half of the 12 µs that the wrapper's own method takes goes into its words.
        told = self._wrapper.logger._get_ddp_logging_data().ints_map  # type: ignore[union-attr]
        try:
            # From the last gradient of this rank to the last all-reduce: its communication, less what its own backward covered.
            wait_ns = told["backward_comm_time"] - told["backward_compute_comm_overlap_time"]
            return int(told["iteration"]), max(0, wait_ns) / 1e6
        except KeyError:  # nothing has been measured yet
            return None


def _names_of(model: torch.nn.Module, parameters: Iterable[torch.nn.Parameter]) -> list[str]:
    """Every name of these parameters; tied ones have several."""
    wanted = set(parameters)
    return [name for name, parameter in model.named_parameters(remove_duplicate=False) if parameter in wanted]


def _unsaved_buffers(model: torch.nn.Module) -> list[str]:
    saved = model.state_dict().keys()
    return [name for name, _ in model.named_buffers() if name not in saved]
