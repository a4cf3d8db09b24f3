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
from paceline.recipes.nsa.pattern import Frame, Pattern


class States(NamedTuple):
    """Keys and values of the three branches, (B, T, G, D) each; those to be compressed not turned."""

    compressed_keys: Tensor
    compressed_values: Tensor
    selected_keys: Tensor
    selected_values: Tensor
    window_keys: Tensor
    window_values: Tensor


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
    can_compile: bool = True
    """torch.compile may look inside"""


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
