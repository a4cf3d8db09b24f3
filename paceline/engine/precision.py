"""Number formats of forward and backward. Weights, gradients and optimizer state are always fp32; fp32 itself is the do-nothing base."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping

import torch

from paceline.config.sections import Precision as PrecisionSection
from paceline.engine.ranks import Ranks
from paceline.telemetry.events import EventLog


class Precision:
    """fp32: no autocast, no loss scaling."""

    name = "fp32"

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def weigh(self, weight: torch.Tensor, num_samples: int) -> None:
        """Told on all ranks, before its backward, what a micro-batch weighs."""

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss as backward sees it."""
        return loss

    def unscale(self, factor: torch.Tensor) -> torch.Tensor:
        """A factor of the gradients that also takes the scale of the loss back."""
        return factor

    def apply(
        self, optimizer: torch.optim.Optimizer, skip: torch.Tensor, own_step: Callable[[], object] | None = None
    ) -> None:
        """One optimizer step, or the strategy's own in its place; left out where `skip` (a float scalar on the device) is 1."""
        if own_step is not None:
            if not bool(skip):  # the host waits here
                own_step()
        elif optimizer.defaults.get("fused"):
            # The fused kernels look at this flag on the device: no synchronisation.
            optimizer.found_inf = skip  # type: ignore[attr-defined]
            try:
                optimizer.step()
            finally:
                del optimizer.found_inf  # type: ignore[attr-defined]
        elif not bool(skip):
            optimizer.step()

    def is_trouble(self, finite_loss: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        """Whether the operator must hear of this step; asked after `apply`."""
        return skip > 0

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint must keep of it."""
        return {}

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes back what `tensors` gave; what another mode left in a checkpoint means nothing here."""


class Bf16(Precision):
    name = "bf16"

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self._device_type, torch.bfloat16)


class Fp16(Precision):
    """fp16 with a scale of the loss that adapts: an overflow leaves the step out on all ranks alike and halves the scale.

    It begins where a mean of losses would, by what a sample weighs in the first micro-batch that weighs something: a sum of many losses
    overflows until the scale has come down, which costs a warm-up its steps. From then on all of it lives on the device. An overflow now
    and then is normal; a loss that is not finite is not, nor are many in a row.
    """

    name = "fp16"
    _GROW_AFTER = 2000
    _MOST_IN_A_ROW = 20
    _MOST_WEIGHT = 2.0**40
    """that counts: a scale of zero would end all"""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._device_type = ranks.device.type
        self.loss_scale = torch.tensor(65536.0, device=ranks.device)
        self._good_steps = torch.zeros((), device=ranks.device)
        self._skipped_steps = torch.zeros((), device=ranks.device)
        self._is_weighed = False

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self._device_type, torch.float16)

    def weigh(self, weight: torch.Tensor, num_samples: int) -> None:
        if self._is_weighed:
            return
        sums = torch.stack([weight.double(), torch.full_like(weight, num_samples, dtype=torch.float64)])
        self._ranks.finish(self._ranks.all_reduce(sums))
        total, samples = sums.tolist()
        if not 0 < total < math.inf:
            return
        self._is_weighed = True
        # Never higher than for a mean: an odd first one may weigh next to nothing. A power of two rounds nothing.
        per_sample = min(max(total / samples, 1.0), self._MOST_WEIGHT)
        self.loss_scale = self.loss_scale * 2.0 ** -round(math.log2(per_sample))

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.loss_scale

    def unscale(self, factor: torch.Tensor) -> torch.Tensor:
        return factor / self.loss_scale

    def apply(
        self, optimizer: torch.optim.Optimizer, skip: torch.Tensor, own_step: Callable[[], object] | None = None
    ) -> None:
        super().apply(optimizer, skip, own_step)
        self._skipped_steps = (self._skipped_steps + 1) * skip
        self._good_steps = (self._good_steps + 1) * (1 - skip)
        grow = (self._good_steps >= self._GROW_AFTER).float()
        self._good_steps *= 1 - grow
        self.loss_scale = self.loss_scale * (1 + grow) * (1 - 0.5 * skip)

    def is_trouble(self, finite_loss: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return ~finite_loss | (self._skipped_steps >= self._MOST_IN_A_ROW)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {
            "loss_scale": self.loss_scale,
            "good_steps": self._good_steps,
            "skipped_steps": self._skipped_steps,
            # Not yet, where a fork saves before its first step.
            "weighed": torch.full_like(self.loss_scale, self._is_weighed),
        }

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, own in self.tensors().items():
            if name in tensors:
                own.copy_(tensors[name])
        # A scale from before samples were weighed has come down by itself.
        self._is_weighed = bool(tensors.get("weighed", "loss_scale" in tensors))


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""What matrix products and attention compute in, by the name of the mode."""


def choose_precision(requested: str, capability: tuple[int, int] | None) -> tuple[str, str]:
    """(effective mode, reason) for the lowest compute capability among the ranks; None without a GPU."""
    if requested != "auto":
        return requested, "as requested"
    if capability is None:
        return "fp32", "no GPU: bf16 matrix products are slower than fp32 on most CPUs"
    major, minor = capability
    if major >= 8:
        return "bf16", f"compute capability {major}.{minor} >= 8.0"
    return "fp16", f"compute capability {major}.{minor} < 8.0 has no bf16"


def build_precision(config: PrecisionSection, ranks: Ranks, events: EventLog) -> Precision:
    """The precision of this run, the same on every rank, recorded as requested and effective with the reason."""
    device = ranks.device
    mode, reason = choose_precision(config.mode, ranks.lowest_capability())
    events.choice("precision.mode", config.mode, mode, reason)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = config.tf32
        torch.backends.cudnn.allow_tf32 = config.tf32
        events.choice("precision.tf32", config.tf32, config.tf32, "matrix products that stay in fp32, on a GPU")
    if mode == "bf16":
        return Bf16(device.type)
    return Fp16(ranks) if mode == "fp16" else Precision()
