"""A copy of tensors in host memory, as one run of bytes, taken at one moment of the training without stopping it.

On CUDA the copy runs on a stream of its own, into page-locked memory, while the next step's forward and backward already read the same
weights; only the next update has to wait for it (`hold_update`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

_SLAB = 1 << 26
"""Bytes per piece of memory."""


class Snapshot:
    """Memory for one copy, used again for the next one; `take` may only be called when nobody reads the last one any more."""

    def __init__(self, device: torch.device) -> None:
        self._registered: list[int] = []
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._copied: torch.cuda.Event | None = None
        self._slabs: list[torch.Tensor] = []
        self._held: Sequence[torch.Tensor] = ()
        self.num_bytes = 0

    def has_room(self, num_bytes: int) -> bool:
        return num_bytes <= len(self._slabs) * _SLAB

    def reserve(self, num_bytes: int) -> None:
        """Gets the memory for so many bytes, if it is not there."""
        while not self.has_room(num_bytes):
            self._slabs.append(self._new_slab())

    def _new_slab(self) -> torch.Tensor:
        slab = torch.zeros(_SLAB, dtype=torch.uint8)  # touched now, not while training waits
        if self._stream is not None:
            # Rather than allocating page-locked memory: that holds the driver's lock while every page is cleared, and launches of kernels
            # wait for it (H200, 3 GiB beside training: 1,036 ms lost; this way 28 ms). Where it is refused, ordinary memory does, slower.
            refused = torch.cuda.cudart().cudaHostRegister(slab.data_ptr(), _SLAB, 0)  # type: ignore[no-untyped-call]
            if not int(refused):
                self._registered.append(slab.data_ptr())
        return slab

    def take(self, tensors: Sequence[torch.Tensor], volatile: Sequence[bool]) -> None:
        """Copies the tensors, one after another; those that `volatile` marks may change before the next update."""
        self.num_bytes = sum(tensor.nbytes for tensor in tensors)
        self.reserve(self.num_bytes)
        if self._stream is None:
            self._copy(tensors)
            return
        held = [tensor.clone() if changes else tensor for tensor, changes in zip(tensors, volatile, strict=True)]
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._copy(held)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(self._stream)
        self._held = held  # until they are copied: their memory must not be given to somebody else

    def hold_update(self) -> None:
        """Before the weights change: the device waits for a copy that is under way (the host does not)."""
        if self._copied is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied)

    def read(self) -> Iterator[memoryview]:
        """The bytes, in pieces, as soon as they are there. From any thread."""
        if self._copied is not None:
            self._copied.synchronize()
            self._held = ()
        left = self.num_bytes
        for slab in self._slabs:
            if left <= 0:
                break
            yield slab[: min(left, _SLAB)].numpy().data
            left -= _SLAB

    def __del__(self) -> None:
        for address in self._registered:
            torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]

    def _copy(self, tensors: Sequence[torch.Tensor]) -> None:
        position = 0
        with torch.no_grad():
            for tensor in tensors:
                data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
                start = 0
                while start < len(data):
                    index, offset = divmod(position, _SLAB)
                    length = min(len(data) - start, _SLAB - offset)
                    target = self._slabs[index][offset : offset + length]
                    target.copy_(data[start : start + length], non_blocking=True)
                    start, position = start + length, position + length
