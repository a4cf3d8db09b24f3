"""PowerSGD: gradients travel as products of two thin matrices, and each rank adds what was lost to its next gradient.

torch's hook does the arithmetic. Here is what surrounds it: from which step on, on how many buckets, and when its memory is dropped.

    powersgd = PowerSgd(config);  wrapper.register_comm_hook(None, powersgd.build_hook())
    # two throw-away iterations: DDP has rebuilt its buckets, and they have been counted
    powersgd.begin(step, backend, num_bytes)            # of all gradients

What each rank remembers is its own and large: a checkpoint does not keep it, and a resumed run is not the same bit for bit.
"""

from __future__ import annotations

from paceline.config.contradictions import powersgd_in_fp16
from paceline.config.sections import PowerSgd as PowerSgdSection
from paceline.engine.compression import Hook
from paceline.errors import ConfigError
from paceline.telemetry.events import EventLog

_NEVER = -(10**12)
"""Steps done, as the hook counts them, before `begin`: gradients travel whole."""
_EPSILON = 1e-8
"""A gradient of zeros must not become one that is not a number."""


class PowerSgd:
    """The state of PowerSGD on this rank."""

    def __init__(self, config: PowerSgdSection) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

        self._config = config
        self._state = PowerSGDState(
            None, config.rank, start_powerSGD_iter=max(2, config.start_step), orthogonalization_epsilon=_EPSILON
        )
        self._state.start_powerSGD_iter = config.start_step
        self._state.iter = _NEVER
        self.num_buckets = 0

    def build_hook(self) -> Hook:
        """A DDP communication hook."""
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook

        # Without annotations: DDP compares them with types, and here they are strings.
        def compress(_, bucket):  # type: ignore[no-untyped-def]
            if bucket.is_last():
                self.num_buckets = bucket.index() + 1
            return powerSGD_hook(self._state, bucket)

        return compress

    def begin(self, step: int, backend: str, num_bytes: int) -> None:
        """After the throw-away iterations: compresses from its step on. Raises, on every rank alike, where it would hang."""
        if backend == "gloo" and self.num_buckets > 1:
            needed_mb = -(-num_bytes // 2**20)
            raise ConfigError(
                f"parallel.compression=powersgd hangs on gloo with several buckets, and there are {self.num_buckets} "
                "(each waits in one of gloo's few threads for the next)",
                "parallel.compression and parallel.bucket_mb",
                f"set parallel.bucket_mb={needed_mb}, which holds all gradients in one, or parallel.compression=bf16; on NCCL it works",
            )
        self.forget()
        self._state.iter = step

    def forget(self) -> None:
        """Drops what was lost so far, the same on every rank: after a gradient that was not a number it would not be one, either."""
        self._state.error_dict.clear()
        self._state.p_memory_dict.clear()
        self._state.q_memory_dict.clear()

    def tell(self, step: int, total_steps: int, events: EventLog) -> None:
        """What the operator has to know about it at this start."""
        start = self._config.start_step
        if start >= total_steps:
            what = "parallel.compression=powersgd has no effect here"
            events.write(
                "note", what=what, why=f"parallel.powersgd.start_step={start}, and the run has {total_steps:,} steps"
            )
        elif step > start:
            what = f"from step {step:,} on this is not bit for bit the run that went on without a stop"
            why = "parallel.compression=powersgd: what each rank still had to make up for is in no checkpoint"
            events.write("note", what=what, why=why)


def check_precision(compression: str, precision: str) -> None:
    """What was lost is added at the scale of the loss of its time; fp16 changes it."""
    if compression == "powersgd" and precision == "fp16":
        raise ConfigError(problems=[powersgd_in_fp16("parallel.compression and precision.mode")])
