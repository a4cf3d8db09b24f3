"""A copy of tensors in host memory, as one run of bytes, taken at one moment of the training without stopping it.

On CUDA the copy runs on a stream of its own, into page-locked memory, while the next step's forward and backward already read the same
weights; only the next update has to wait for it (`hold_update`). Where the GPU has memory to spare, a copy is made within it first: of a
small state in a few launches, after which nothing has to wait; of a large one tensor by tensor, which then leaves piece by piece, so that
what a step sends to the host waits behind a piece, and not behind all of it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import torch

_SLAB = 1 << 26
"""Bytes per piece of memory."""
_AT_ONCE = 1 << 28
"""Bytes that leave the GPU in a few milliseconds."""
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types that stand for any of their size: bits are copied, not numbers."""
_SHARE = 0.25
"""How much of the GPU's free memory may be used for a moment."""


class Snapshot:
    """Memory for one copy, used again for the next one; `take` may only be called when nobody reads the last one any more."""

    def __init__(self, device: torch.device) -> None:
        self._registered: list[int] = []
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._is_read: torch.cuda.Event | None = None
        """the weights may change"""
        self._spare_bytes: int | None = None
        self._slabs: list[torch.Tensor] = []
        self._held: Sequence[torch.Tensor] = ()
        self._later: list[tuple[torch.Tensor, int]] = []
        """copies that still have to leave the GPU, each with its place"""
        self.num_bytes = 0

    def has_room(self, num_bytes: int) -> bool:
        return num_bytes <= len(self._slabs) * _SLAB

    def reserve(self, num_bytes: int) -> None:
        """Gets the memory for so many bytes, if it is not there."""
        while not self.has_room(num_bytes):
            self._slabs.append(self._new_slab())

    def take(self, tensors: Sequence[torch.Tensor], volatile: Sequence[bool]) -> None:
        """Copies the tensors, one after another; those that `volatile` marks may change before the next update."""
        starts = [0, *itertools.accumulate(tensor.nbytes for tensor in tensors)]
        self.num_bytes = starts.pop()
        self.reserve(self.num_bytes)
        if self._stream is None:
            _exhaust(self._copy(zip(tensors, starts, strict=True)))
            return
        if self.num_bytes <= _AT_ONCE and self.num_bytes <= self._spare():
            self._send(_pack(tensors))
            return
        held = [tensor.clone() if changes else tensor for tensor, changes in zip(tensors, volatile, strict=True)]
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            count = self._copy_within(held) if self.num_bytes > _AT_ONCE else 0
            placed = list(zip(held, starts, strict=True))
            _exhaust(self._copy(placed[count:]))
            self._is_read = self._mark()
        # Until they are copied: their memory must not be given to somebody else.
        self._held, self._later = held, placed[:count]

    def take_assembled(self, tensors: Iterable[torch.Tensor], num_bytes: int) -> None:
        """Copies tensors that are there for a moment only, one after another as they come; so many bytes in all."""
        self.num_bytes = num_bytes
        self.reserve(num_bytes)
        _exhaust(self._copy(_placed(tensors)))
        if self._stream is not None:
            # Their memory is used again by what this stream does next: it copies them itself, and no update has to be held.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._is_read, self._held, self._later = None, (), []

    def hold_update(self) -> None:
        """Before the weights change: the device waits until they have been read (the host does not)."""
        if self._is_read is not None:
            torch.cuda.current_stream(self._device).wait_event(self._is_read)

    def read(self) -> Iterator[memoryview]:
        """The bytes, in pieces, as soon as they are there. From any thread."""
        if self._stream is not None:
            with torch.cuda.stream(self._stream):
                self._mark().synchronize()
                for _ in self._copy(self._later):
                    self._mark().synchronize()
            self._held, self._later = (), []
        left = self.num_bytes
        for slab in self._slabs:
            if left <= 0:
                break
            yield slab[: min(left, _SLAB)].numpy().data
            left -= _SLAB

    def __del__(self) -> None:
        for address in self._registered:
            torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]

    def _new_slab(self) -> torch.Tensor:
        slab = torch.zeros(_SLAB, dtype=torch.uint8)  # touched now, not while training waits
        if self._stream is not None:
            # Rather than allocating page-locked memory: that holds the driver's lock while every page is cleared, and launches of kernels
            # wait for it (H200, 3 GiB beside training: 1,036 ms lost; this way 28 ms). Where it is refused, ordinary memory does, slower.
            refused = torch.cuda.cudart().cudaHostRegister(slab.data_ptr(), _SLAB, 0)  # type: ignore[no-untyped-call]
            if not int(refused):
                self._registered.append(slab.data_ptr())
        return slab

    def _send(self, packed: Sequence[torch.Tensor]) -> None:
        """Copies what belongs to nobody else: the weights may change at once."""
        assert self._stream is not None
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            _exhaust(self._copy(_placed(packed)))
        self._is_read, self._held, self._later = None, packed, []

    def _spare(self) -> int:
        """Bytes of the GPU's memory that may be used for a moment."""
        if self._spare_bytes is None:
            # Asked once: what the first copies used stays with torch, and would count as taken the next time.
            self._spare_bytes = int(_SHARE * torch.cuda.mem_get_info(self._device)[0])
        return self._spare_bytes

    def _copy_within(self, tensors: list[torch.Tensor]) -> int:
        """Replaces the first tensors by copies in the GPU's own memory, as many as that can spare; how many."""
        used = 0
        for index, tensor in enumerate(tensors):
            used += tensor.nbytes
            if used > self._spare():
                return index
            tensors[index] = tensor.detach().clone()
        return len(tensors)

    def _copy(self, placed: Iterable[tuple[torch.Tensor, int]]) -> Iterator[None]:
        """Into the slabs, each tensor's bytes from its place on; piece by piece, as it is asked for."""
        for tensor, position in placed:
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            done, size = 0, data.nbytes
            while done < size:
                index, offset = divmod(position + done, _SLAB)
                length = min(size - done, _SLAB - offset)
                target = self._slabs[index][offset : offset + length]
                target.copy_(data[done : done + length], non_blocking=True)
                done += length
                yield

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event


def _pack(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same bytes one after another in a few tensors, made by what the device does next."""
    groups = itertools.groupby(tensors, key=lambda tensor: (tensor.device, tensor.element_size()))
    with torch.no_grad():
        return [torch.cat([tensor.view(_WORDS[size]).reshape(-1) for tensor in group]) for (_, size), group in groups]


def _placed(tensors: Iterable[torch.Tensor]) -> Iterator[tuple[torch.Tensor, int]]:
    position = 0
    for tensor in tensors:
        yield tensor, position
        position += tensor.nbytes


def _exhaust(pieces: Iterator[None]) -> None:
    deque(pieces, maxlen=0)
