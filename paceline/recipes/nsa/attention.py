"""The attention of a block: native sparse attention in three branches, or its dense twin.

    mixed_BTW = SparseAttention(shape, stages)(hidden_BTW, frame)
    mixed_BTW = DenseAttention(shape, "sdpa")(hidden_BTW, frame)

Both have grouped queries: H heads look at the keys of G groups, H / G of them at the same. Each branch of the sparse one has keys and values
of its own. Which stages compute it is decided elsewhere (paths.py).

Shapes: B rows, T tokens, W width of the model, H heads, G groups, D width of a head, N slots, n selected blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.engine.attend import KERNELS
from paceline.recipes.nsa import reference
from paceline.recipes.nsa.cache import DenseCache
from paceline.recipes.nsa.compression import Compression
from paceline.recipes.nsa.gates import BRANCHES, Gates
from paceline.recipes.nsa.mark import mark_nothing, mark_stage
from paceline.recipes.nsa.moment import Moment
from paceline.recipes.nsa.pattern import Frame, Pattern, build_frame
from paceline.recipes.nsa.rotary import Rotation, rotate
from paceline.recipes.nsa.stages import Cache, Stages, States, turn_keys
from paceline.recipes.nsa.torch_path import TORCH

_COLUMNS = 64
"""a projection has a multiple of so many: what tensor cores are fast at"""


@dataclass(frozen=True)
class Shape:
    """Sizes of one attention."""

    width: int
    heads: int
    groups: int
    head_width: int
    pattern: Pattern = field(default_factory=Pattern)
    gate: str = "sigmoid"
    compression_hidden: int | None = None
    """hidden width of φ; None: twice the head's"""


def reference_sizes(shape: Shape) -> reference.Sizes:
    """The same sizes as the reference, which shares nothing with the other paths, wants them."""
    pattern = shape.pattern
    return reference.Sizes(
        heads=shape.heads,
        groups=shape.groups,
        block=pattern.block,
        stride=pattern.stride,
        selection_block=pattern.selection_block,
        selected=pattern.selected,
        window=pattern.window,
        gate=shape.gate,
        initial=pattern.initial,
        local=pattern.local,
    )


class SparseAttention(nn.Module):
    """Compressed, selected and window attention, mixed by gates. `stages` None: by the reference, one query after another."""

    def __init__(self, shape: Shape, stages: Stages | None, is_marked: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self._stages = stages
        self._is_marked = is_marked
        self._mark = mark_stage if is_marked else mark_nothing
        inner, hidden = shape.heads * shape.head_width, shape.compression_hidden or 2 * shape.head_width
        self.project_query = nn.Linear(shape.width, inner, bias=False)
        self.project_states = nn.Linear(shape.width, 2 * len(BRANCHES) * shape.groups * shape.head_width, bias=False)
        self.project_out = nn.Linear(inner, shape.width, bias=False)
        self.gates = Gates(shape.width, shape.heads, shape.gate)
        self.compress_keys = Compression(shape.pattern.block, shape.head_width, hidden)
        self.compress_values = Compression(shape.pattern.block, shape.head_width, hidden)

    def forward(
        self, hidden_BTW: Tensor, frame: Frame, cache: Cache | None = None, blocks_BTGn: Tensor | None = None
    ) -> Tensor:
        """With a cache, which must be empty, what decoding will need of these tokens is kept there; with blocks, none are selected."""
        if self._stages is None and cache is None:
            return self._by_reference(hidden_BTW, frame, blocks_BTGn)
        query, states, logits = self._project(hidden_BTW)
        query, states = rotate(query, frame.rotation), turn_keys(states, frame.rotation)
        if cache is not None:
            cache.append(states, self.compress_keys, self.compress_values)
        # The reference fills no cache: what is to be decoded from one is read by plain torch.
        stages = self._stages or TORCH
        attend = self._attend_uncompiled if self._is_marked else self._attend
        mixed_BTHD: Tensor = attend(stages, query, states, self.gates.open(logits), frame, blocks_BTGn)
        return self._project_out(mixed_BTHD)

    def build_frame(self, positions_BT: Tensor, dtype: torch.dtype) -> Frame:
        """What its stages have to know of a batch; all layers share one."""
        frame = build_frame(positions_BT, self.shape.pattern, self.shape.head_width, dtype)
        return frame if self._stages is None else self._stages.lay_out(frame, self.shape.pattern)

    def build_cache(self) -> Cache:
        """An empty one."""
        return (self._stages or TORCH).build_cache(self.shape.pattern, self._mark)

    def decode(self, hidden_B1W: Tensor, moment: Moment, cache: Cache) -> Tensor:
        """The same for one more token per row, (B, 1, W), which the cache has not seen yet."""
        # Each by itself: to lay the weights side by side would cost a token more than two products fewer save it.
        states_B1f = self.project_states(hidden_B1W).chunk(len(States._fields), dim=-1)
        query, states = self._share_out(self.project_query(hidden_B1W), *states_B1f)
        gates_B1H3 = self.gates(hidden_B1W)
        mixed_B1HD = cache.step(query, states, gates_B1H3, moment, self.compress_keys, self.compress_values)
        return self._project_out(mixed_B1HD)

    def _project(self, hidden_BTW: Tensor) -> tuple[Tensor, States, Tensor]:
        """Query and states, not turned yet, and what the gates are opened by: one product, and one gradient of its input.

        Gates alone are a few columns, no multiple of what tensor cores take at a time: their product would be as slow as that of the query.
        All are cut out at once: cut again, the gradients of states would be laid side by side twice.
        """
        weights = [self.project_query.weight, self.project_states.weight, self.gates.project.weight]
        widths = [len(weight) for weight in weights]
        rest = -sum(widths) % _COLUMNS
        weights.append(weights[0].new_zeros(rest, self.shape.width))
        projected = F.linear(hidden_BTW, torch.cat(weights))
        of_query, of_states, of_gates = widths
        num_states = len(States._fields)
        cuts = [of_query, *[of_states // num_states] * num_states, of_gates, rest]
        query, *states, logits, _ = torch.split(projected, cuts, dim=-1)
        return *self._share_out(query, *states), logits

    def _share_out(self, query_BTf: Tensor, *states_BTf: Tensor) -> tuple[Tensor, States]:
        """What was projected, by heads; and the states by groups."""
        query = torch.unflatten(query_BTf, -1, (self.shape.heads, -1))
        return query, States(*(torch.unflatten(each, -1, (self.shape.groups, -1)) for each in states_BTf))

    def _attend(
        self,
        stages: Stages,
        query: Tensor,
        states: States,
        gates_BTH3: Tensor,
        frame: Frame,
        blocks_BTGn: Tensor | None,
    ) -> Tensor:
        pattern = self.shape.pattern
        with self._mark("compress"):
            keys = stages.compress(states.compressed_keys, self.compress_keys, frame)
            keys = rotate(keys, frame.block_rotation).to(query.dtype)
            values = stages.compress(states.compressed_values, self.compress_values, frame).to(query.dtype)
        with self._mark("compressed"):
            compressed, logsum = stages.attend_compressed(query, keys, values, frame)
        if blocks_BTGn is None:
            with self._mark("select"):
                blocks_BTGn = stages.select(query.detach(), keys.detach(), logsum, frame, pattern)
        with self._mark("selected"):
            selected = stages.attend_selected(
                query, states.selected_keys, states.selected_values, blocks_BTGn, frame, pattern
            )
        with self._mark("window"):
            window = stages.attend_window(query, states.window_keys, states.window_values, frame, pattern)
        with self._mark("mix"):
            return stages.mix(gates_BTH3, compressed, selected, window)

    # What is compiled is one kernel after another, without borders between stages: where these are looked at, it runs as written.
    _attend_uncompiled = torch.compiler.disable(_attend)  # type: ignore[no-untyped-call]

    def _project_out(self, mixed_BTHD: Tensor) -> Tensor:
        projected: Tensor = self.project_out(mixed_BTHD.flatten(2))
        return projected

    def _by_reference(self, hidden_BTW: Tensor, frame: Frame, blocks_BTGn: Tensor | None) -> Tensor:
        sizes = reference_sizes(self.shape)
        weights = dict(self.named_parameters())
        rows = []
        for row, hidden_TW in enumerate(hidden_BTW):
            given = None if blocks_BTGn is None else blocks_BTGn[row]
            rows.append(reference.attend(hidden_TW, weights, frame.starts_BT[row].tolist(), sizes, given)[0])
        return torch.stack(rows)


class DenseAttention(nn.Module):
    """The twin: every query looks at its document's whole past, by one of the engine's kernels."""

    def __init__(self, shape: Shape, kernel: str) -> None:
        super().__init__()
        self.shape = shape
        self._kernel = KERNELS[kernel]
        inner = shape.heads * shape.head_width
        self.project_query = nn.Linear(shape.width, inner, bias=False)
        self.project_states = nn.Linear(shape.width, 2 * shape.groups * shape.head_width, bias=False)
        self.project_out = nn.Linear(inner, shape.width, bias=False)

    def forward(
        self, hidden_BTW: Tensor, frame: Frame, cache: DenseCache | None = None, sees_B1TT: Tensor | None = None
    ) -> Tensor:
        """`sees_B1TT`: which token looks at which; None: rows are one document each."""
        query, keys, values = self._project(hidden_BTW, frame.rotation)
        if cache is not None:
            cache.append(keys, values)
        repeats = self.shape.heads // self.shape.groups
        keys, values = (states.repeat_interleave(repeats, dim=2) for states in (keys, values))
        heads_first = (states.transpose(1, 2) for states in (query, keys, values))
        mixed_BHTD = self._kernel(*heads_first, is_causal=sees_B1TT is None, mask=sees_B1TT)
        projected: Tensor = self.project_out(mixed_BHTD.transpose(1, 2).flatten(2))
        return projected

    def build_frame(self, positions_BT: Tensor, dtype: torch.dtype) -> Frame:
        return build_frame(positions_BT, self.shape.pattern, self.shape.head_width, dtype)

    def build_cache(self) -> DenseCache:
        return DenseCache()

    def decode(self, hidden_B1W: Tensor, moment: Moment, cache: DenseCache) -> Tensor:
        query, keys, values = self._project(hidden_B1W, moment.rotation)
        cache.append(keys, values)
        projected: Tensor = self.project_out(cache.attend(query).flatten(2))
        return projected

    def _project(self, hidden_BTW: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        query = rotate(self.project_query(hidden_BTW).unflatten(-1, (self.shape.heads, -1)), rotation)
        projected = self.project_states(hidden_BTW).unflatten(-1, (2, self.shape.groups, -1))
        keys, values = projected.unbind(2)
        return query, rotate(keys, rotation), values


def dense_mask(frame: Frame) -> Tensor:
    """(B, 1, T, T): tokens of a query's document up to itself."""
    index_T = torch.arange(frame.starts_BT.shape[1], device=frame.starts_BT.device)
    return ((index_T >= frame.starts_BT[..., None]) & (index_T <= index_T[:, None]))[:, None]
