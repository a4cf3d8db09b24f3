"""The stages of native sparse attention, each of which can be exchanged by itself.

    stages = replace(TORCH, attend_window=my_kernel)

Queries come turned, keys too (of the compressed ones by the position of their block's first token); values as they are. All have the type
of the model's products; each stage gives its result in that type and its gradients to all it was given.

Shapes: B rows, T tokens, N slots (pattern.py), H heads, G groups, D width, n selected blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from paceline.recipes.nsa.compression import Compression
from paceline.recipes.nsa.mark import Mark
from paceline.recipes.nsa.moment import Moment
from paceline.recipes.nsa.pattern import Frame, Pattern
from paceline.recipes.nsa.rotary import Rotation, rotate


class States(NamedTuple):
    """Keys and values of the three branches, (B, T, G, D) each; those to be compressed not turned."""

    compressed_keys: Tensor
    compressed_values: Tensor
    selected_keys: Tensor
    selected_values: Tensor
    window_keys: Tensor
    window_values: Tensor


def turn_keys(states: States, rotation: Rotation) -> States:
    """The keys of tokens by their positions; those to be compressed are turned as blocks, later."""
    # No `_replace`: torch 2.11 cannot compile up to a tuple that was made so.
    return States(
        states.compressed_keys,
        states.compressed_values,
        rotate(states.selected_keys, rotation),
        states.selected_values,
        rotate(states.window_keys, rotation),
        states.window_values,
    )


class Compress(Protocol):
    def __call__(self, states_BTGD: Tensor, compression: Compression, frame: Frame) -> Tensor:
        """(B, N, G, D): one key or value per slot, not turned yet."""
        ...


class AttendCompressed(Protocol):
    def __call__(
        self, query_BTHD: Tensor, keys_BNGD: Tensor, values_BNGD: Tensor, frame: Frame
    ) -> tuple[Tensor, Tensor]:
        """(B, T, H, D), zeros where a query sees no block; and (B, H, T) without gradients: the logarithm of its sum of exponentials."""
        ...


class Select(Protocol):
    def __call__(
        self, query_BTHD: Tensor, keys_BNGD: Tensor, logsum_BHT: Tensor, frame: Frame, pattern: Pattern
    ) -> Tensor:
        """(B, T, G, n): blocks as `choose_blocks` gives them; without gradients."""
        ...


class AttendSelected(Protocol):
    def __call__(
        self,
        query_BTHD: Tensor,
        keys_BTGD: Tensor,
        values_BTGD: Tensor,
        blocks_BTGn: Tensor,
        frame: Frame,
        pattern: Pattern,
    ) -> Tensor:
        """(B, T, H, D)."""
        ...


class AttendWindow(Protocol):
    def __call__(
        self, query_BTHD: Tensor, keys_BTGD: Tensor, values_BTGD: Tensor, frame: Frame, pattern: Pattern
    ) -> Tensor:
        """(B, T, H, D)."""
        ...


class Mix(Protocol):
    def __call__(
        self, gates_BTH3: Tensor, compressed_BTHD: Tensor, selected_BTHD: Tensor, window_BTHD: Tensor
    ) -> Tensor:
        """(B, T, H, D): the branches by their gates, in the order of gates.BRANCHES."""
        ...


class LayOut(Protocol):
    def __call__(self, frame: Frame, pattern: Pattern) -> Frame:
        """The frame with all that these stages want to know besides, once per batch."""
        ...


class Cache(Protocol):
    """What decoding keeps of the tokens so far, for one layer. All rows have the same length."""

    length: int
    bytes_read: int
    """keys and values, since it was empty"""

    @property
    def can_replay(self) -> bool:
        """A step does the same on the device at every length, and may be recorded, until `make_room` says otherwise."""
        ...

    def append(self, states: States, compress_keys: Compression, compress_values: Compression) -> None:
        """A prompt, its keys turned."""
        ...

    def make_room(self) -> bool:
        """For one token more, before it; whether what was recorded is void."""
        ...

    def step(
        self,
        query_B1HD: Tensor,
        states: States,
        gates_B1H3: Tensor,
        moment: Moment,
        compress_keys: Compression,
        compress_values: Compression,
    ) -> Tensor:
        """(B, 1, H, D): one more token per row, its query and keys not turned yet, and what it reads of the past and itself."""
        ...

    def advance(self) -> None:
        """The token is in, whether its step was computed or replayed."""
        ...


class BuildCache(Protocol):
    def __call__(self, pattern: Pattern, mark: Mark) -> Cache:
        """An empty one."""
        ...


@dataclass(frozen=True)
class Stages:
    """What computes each of them."""

    lay_out: LayOut
    compress: Compress
    attend_compressed: AttendCompressed
    select: Select
    attend_selected: AttendSelected
    attend_window: AttendWindow
    mix: Mix
    build_cache: BuildCache
    """for decoding, which is a path of its own through the same branches"""


STAGES = {
    "compress": "compress",
    "compressed": "attend_compressed",
    "select": "select",
    "selected": "attend_selected",
    "window": "attend_window",
    "mix": "mix",
}
"""as they are told of, in the order in which a layer runs them, and their fields above"""


def name_stage(stages: Stages, stage: str) -> str:
    """Where the function lives that computes it: torch_path.attend_window."""
    computes = getattr(stages, STAGES[stage])
    return f"{computes.__module__.rpartition('.')[2]}.{computes.__name__}"
