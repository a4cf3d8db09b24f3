"""Shared memory of one simulated program, with what the hardware does not check: who may read and write which number at the moment.

A number that a copy is on its way to may be neither read nor written; one that the matrix units or the copy engine are reading may not be
written; one that threads wrote may be read by those two only behind a fence of the writer, and one that threads read be copied over only
behind a fence of the reader. Whatever nobody wrote is not a number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.hopper.turns import Turns


class Race(AssertionError):
    """Two that were not told to wait for each other."""


class Storage:
    """What was allocated at once."""

    def __init__(self, dtype: torch.dtype, size: int, turns: Turns) -> None:
        self.turns = turns
        self.numbers = torch.full((size,), float("nan") if dtype.is_floating_point else -(2**30), dtype=dtype)
        self.coming = torch.zeros(size, dtype=torch.bool)
        self.readers = torch.zeros(size, dtype=torch.int32)
        """of the matrix units and the copy engine, which read some time until they are waited for"""
        self._unfenced: dict[tuple[str, str], Tensor] = {}
        """what was read or written by threads since their last fence, by the group of warps"""

    def note(self, done: str, places: Tensor) -> None:
        """Threads of the group whose turn it is have done this there."""
        noted = self._unfenced.setdefault((self.turns.name, done), torch.zeros_like(self.coming))
        noted[places] = True

    def check_fenced(self, done: str, places: Tensor) -> None:
        for (group, what), noted in self._unfenced.items():
            if what == done and noted[places].any():
                raise Race(f"what {group} has {done}, by threads, is taken by others without its fence")

    def fence(self) -> None:
        for done in ("read", "written"):
            self._unfenced.pop((self.turns.name, done), None)


@dataclass(frozen=True)
class View:
    """Some of it, in some order: places has the shape, and where in the storage each number lies."""

    storage: Storage
    places: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.storage.numbers.dtype

    @property
    def shape(self) -> torch.Size:
        return self.places.shape

    @property
    def num_bytes(self) -> int:
        return self.places.numel() * self.dtype.itemsize

    def index(self, i: int) -> View:
        return View(self.storage, self.places[int(i)])

    def permute(self, order: tuple[int, ...]) -> View:
        return View(self.storage, self.places.permute(order))

    def _reinterpret(self, dtype: torch.dtype, shape: list[int], layout: object) -> View:
        """As the matrix units want it: 64 numbers of 2 bytes wide, one such column of all rows after another."""
        assert dtype == self.dtype
        assert self.places.numel() == self.storage.numbers.numel(), "of all that was allocated"
        *rest, rows, columns = shape
        assert rows % 8 == 0, "numbers are shuffled within 8 rows"
        places = torch.arange(self.places.numel()).view(*rest, -(-columns // 64), rows, min(columns, 64))
        return View(self.storage, places.movedim(-3, -2).reshape(shape))

    def load(self, layout: object = None) -> Tensor:
        """By threads."""
        self._check_none_coming("read")
        found = self.storage.numbers[self.places]
        self.storage.note("read", self.places)
        self.storage.turns.step()
        return found

    def store(self, value: Tensor) -> None:
        """By threads."""
        assert value.dtype == self.dtype, f"{value.dtype} into {self.dtype}"
        assert value.shape == self.shape
        self.check_writable()
        self.storage.numbers[self.places] = value
        self.storage.note("written", self.places)
        self.storage.turns.step()

    def read_beside(self) -> Tensor:
        """By the matrix units or the copy engine: until `release`, nobody may write it."""
        self._check_none_coming("read")
        self.storage.check_fenced("written", self.places)
        self.storage.readers[self.places] += 1
        return self.storage.numbers[self.places]

    def release(self) -> None:
        self.storage.readers[self.places] -= 1

    def expect(self) -> None:
        """A copy is on its way here."""
        self.check_writable()
        self.storage.check_fenced("read", self.places)
        self.storage.check_fenced("written", self.places)
        self.storage.coming[self.places] = True

    def arrive(self, value: Tensor) -> None:
        self.storage.numbers[self.places] = value
        self.storage.coming[self.places] = False

    def check_writable(self) -> None:
        self._check_none_coming("written")
        if self.storage.readers[self.places].any():
            raise Race("written while the matrix units or the copy engine read it")

    def _check_none_coming(self, done: str) -> None:
        if self.storage.coming[self.places].any():
            raise Race(f"{done} while a copy is on its way there")


class Barrier:
    """A phase ends when so many arrived and so many bytes came; who waits names the phase's parity."""

    def __init__(self, name: str, turns: Turns) -> None:
        self.name, self.turns = name, turns
        self.count = self.missing = self.bytes = self.phase = 0

    def init(self, count: int) -> None:
        self.count = self.missing = count

    def expect(self, num_bytes: int) -> None:
        self.bytes += num_bytes
        self.arrive(1)

    def arrive(self, count: int) -> None:
        self.missing -= count
        assert self.missing >= 0, f"{self.name}: more arrived than it counts"
        self._turn_over()
        self.turns.step()

    def complete(self, num_bytes: int) -> None:
        """Of a copy; its bytes may come before they are expected."""
        self.bytes -= num_bytes
        self._turn_over()

    def wait(self, parity: int) -> None:
        self.turns.wait_until(lambda: self.phase % 2 != parity, f"phase {parity} of {self.name}, now {self.phase}")

    def _turn_over(self) -> None:
        if self.missing == 0 and self.bytes == 0:
            self.phase += 1
            self.missing = self.count
