"""Number formats of forward and backward. Weights, gradients and optimizer state are always fp32; fp32 itself is the do-nothing base."""

from __future__ import annotations

import contextlib

import torch

from paceline.telemetry.events import EventLog


class Precision:
    """fp32: no autocast, no loss scaling."""

    name = "fp32"
    overflow_is_normal = False
    """whether a gradient that is not finite is an everyday event (fp16) or a sign of trouble"""

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients back to their true size, after the last backward of a step."""

    def apply(self, optimizer: torch.optim.Optimizer, bad: torch.Tensor) -> None:
        """One optimizer step, left out where `bad` (a float scalar on the device) is 1."""
        if optimizer.defaults.get("fused"):
            # The fused kernels look at this flag on the device: no synchronisation.
            optimizer.found_inf = bad  # type: ignore[attr-defined]
            optimizer.step()
            del optimizer.found_inf  # type: ignore[attr-defined]
        elif not bool(bad):
            optimizer.step()


class Bf16(Precision):
    name = "bf16"

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self._device_type, torch.bfloat16)


class Fp16(Precision):
    """fp16 with a loss scale that adapts: an overflow leaves the step out on all ranks alike and lowers the scale."""

    name = "fp16"
    overflow_is_normal = True

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self.scaler = torch.amp.GradScaler(device_type)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self._device_type, torch.float16)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return self.scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        self.scaler.unscale_(optimizer)

    def apply(self, optimizer: torch.optim.Optimizer, bad: torch.Tensor) -> None:
        # The scaler found the same non-finite gradients in `unscale`: it skips and adapts by itself.
        self.scaler.step(optimizer)
        self.scaler.update()


def choose_precision(requested: str, device: torch.device) -> tuple[str, str]:
    """(effective mode, reason)."""
    if requested != "auto":
        return requested, "as requested"
    if device.type != "cuda":
        return "fp32", "no GPU: bf16 matrix products are slower than fp32 on most CPUs"
    major, minor = torch.cuda.get_device_capability(device)
    if major >= 8:
        return "bf16", f"compute capability {major}.{minor} >= 8.0"
    return "fp16", f"compute capability {major}.{minor} < 8.0 has no bf16"


def build_precision(requested: str, tf32: bool, device: torch.device, events: EventLog) -> Precision:
    """The precision for this device, recorded as requested and effective with the reason."""
    mode, reason = choose_precision(requested, device)
    events.choice("precision.mode", requested, mode, reason)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
    if mode == "bf16":
        return Bf16(device.type)
    if mode == "fp16":
        return Fp16(device.type)
    return Precision()
