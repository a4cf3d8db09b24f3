"""What decoding keeps of the tokens so far, for one layer, on a GPU with kernels: stores of a fixed capacity that doubles when it is full.

    cache = FastCache(pattern)
    cache.append(states, compress_keys, compress_values)      a prompt
    has_moved = cache.make_room()                             before a token
    mixed_B1HD = cache.step(query, states, gates, moment, compress_keys, compress_values)
    cache.advance()                                           after it

A step launches the same kernels on the same memory whatever the length, until `make_room` has moved the stores: so it can be recorded and
replayed. It can be repeated: before `advance`, the same token again changes nothing. `bytes_read` counts keys and values once, as
SparseCache does, and of the compression the sums that a token adds to.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.recipes.nsa.cache import compress_blocks
from paceline.recipes.nsa.compression import Compression
from paceline.recipes.nsa.kernels.fast_decode import (
    Phi,
    Room,
    Stores,
    append_token,
    attend_token,
    build_phi,
    build_room,
)
from paceline.recipes.nsa.mark import Mark, mark_nothing
from paceline.recipes.nsa.moment import Moment
from paceline.recipes.nsa.pattern import Pattern
from paceline.recipes.nsa.stages import States

_LEAST = 256
"""tokens that there is room for at first"""


class FastCache:
    can_replay = True

    def __init__(self, pattern: Pattern, mark: Mark = mark_nothing) -> None:
        self._pattern = pattern
        self._mark = mark
        self._stores: Stores | None = None
        self._room: Room | None = None
        self._phi: tuple[Phi, Phi] | None = None
        self.length = 0
        self.bytes_read = 0

    @property
    def stores(self) -> Stores:
        assert self._stores is not None, "nothing was appended yet"
        return self._stores

    @property
    def blocks_BGn(self) -> Tensor | None:
        """What the last step selected; behind that -1."""
        return None if self._room is None else self._room.blocks

    def append(self, states: States, compress_keys: Compression, compress_values: Compression) -> None:
        assert self.length == 0, "a prompt comes first"
        length = states.selected_keys.shape[1]
        self._stores = _build_stores(states, _capacity(length), self._pattern, compress_keys.expand.out_features)
        self.length = length
        with self._mark("compress"):
            self._fill(states, compress_keys, compress_values)

    def make_room(self) -> bool:
        capacity = self.stores.selected_keys.shape[2]
        if self.length < capacity:
            return False
        self._stores = _enlarge(self.stores, 2 * capacity, self._pattern)
        self._room = None
        return True

    def step(
        self,
        query_B1HD: Tensor,
        states: States,
        gates_B1H3: Tensor,
        moment: Moment,
        compress_keys: Compression,
        compress_values: Compression,
    ) -> Tensor:
        stores, heads = self.stores, query_B1HD.shape[2]
        if self._room is None:
            self._room = build_room(stores, heads, self._pattern)
        if self._phi is None:
            # Once: a model's weights do not change while it decodes.
            self._phi = build_phi(compress_keys), build_phi(compress_values)
        with self._mark("append"):
            append_token(stores, self._room, query_B1HD[:, 0], states, moment, *self._phi, self._pattern)
        with self._mark("attend"):
            return self.attend(gates_B1H3, moment)

    def attend(self, gates_B1H3: Tensor, moment: Moment) -> Tensor:
        """(B, 1, H, D): what the token of the last step reads."""
        assert self._room is not None, "no step was made yet"
        mixed_BHD = attend_token(self.stores, self._room, gates_B1H3[:, 0].contiguous(), moment, self._pattern)
        return mixed_BHD[:, None]

    def advance(self) -> None:
        self.length += 1
        pattern, stores = self._pattern, self.stores
        rows, groups, _, width = stores.window_keys.shape
        tokens = pattern.num_compressed(self.length) + pattern.num_selected(self.length)
        tokens += min(self.length, pattern.window)
        self.bytes_read += 2 * rows * groups * width * tokens * stores.window_keys.element_size()
        # Half of them are of the other parity.
        self.bytes_read += sum(each.numel() * each.element_size() // 2 for each in (stores.hidden, stores.sums))

    def _fill(self, states: States, compress_keys: Compression, compress_values: Compression) -> None:
        pattern, stores, length = self._pattern, self.stores, self.length
        for store, of_tokens in (
            (stores.selected_keys, states.selected_keys),
            (stores.selected_values, states.selected_values),
        ):
            store[:, :, :length] = of_tokens.transpose(1, 2)
        newest = min(length, pattern.window)
        places = torch.arange(length - newest, length, device=stores.hidden.device) % pattern.window
        for store, of_tokens in (
            (stores.window_keys, states.window_keys),
            (stores.window_values, states.window_values),
        ):
            store[:, :, places] = of_tokens[:, -newest:].transpose(1, 2)
        num_blocks = pattern.num_compressed(length)
        raw = states.compressed_keys, states.compressed_values
        if num_blocks:
            keys, values = compress_blocks(*raw, 0, pattern, compress_keys, compress_values)
            stores.compressed_keys[:, :, :num_blocks] = keys.transpose(1, 2)
            stores.compressed_values[:, :, :num_blocks] = values.transpose(1, 2)
            self.bytes_read += 2 * num_blocks * pattern.block * raw[0][:, 0].numel() * raw[0].element_size()
        for kind, (tokens, compression) in enumerate(zip(raw, (compress_keys, compress_values), strict=True)):
            self._begin_blocks(tokens, compression, kind)

    def _begin_blocks(self, tokens_BTGD: Tensor, compression: Compression, kind: int) -> None:
        """What the prompt's last tokens add to the blocks that are not whole yet, as the kernel would have left it."""
        pattern, stores, length = self._pattern, self.stores, self.length
        parity, covers = (length - 1) % 2, pattern.block // pattern.stride
        phi = build_phi(compression)
        for number in range(pattern.num_compressed(length), -(-length // pattern.stride)):
            begun_BGlD = tokens_BTGD[:, number * pattern.stride :].transpose(1, 2).float()
            whole_BGlD = F.pad(begun_BGlD, (0, 0, 0, pattern.block - begun_BGlD.shape[2]))
            with torch.autocast(tokens_BTGD.device.type, enabled=False):
                hidden_BGf = whole_BGlD.flatten(2) @ phi.expand.float().T + phi.shift
            stores.hidden[parity, :, :, kind, number % covers] = hidden_BGf
            stores.sums[parity, :, :, kind, number % covers] = begun_BGlD.sum(2)


def _capacity(length: int) -> int:
    """Enough for a prompt of this length and one token more: a power of two."""
    return max(_LEAST, 1 << length.bit_length())


def _build_stores(states: States, capacity: int, pattern: Pattern, hidden: int) -> Stores:
    like = states.selected_keys
    rows, _, groups, width = like.shape
    covers = pattern.block // pattern.stride

    def make(tokens: int) -> Tensor:
        return like.new_empty(rows, groups, tokens, width)

    def make_sums(size: int) -> Tensor:
        return like.new_zeros((2, rows, groups, 2, covers, size), dtype=torch.float32)

    slots = pattern.num_slots(capacity)
    return Stores(
        compressed_keys=make(slots),
        compressed_values=make(slots),
        selected_keys=make(capacity),
        selected_values=make(capacity),
        window_keys=make(pattern.window),
        window_values=make(pattern.window),
        hidden=make_sums(hidden),
        sums=make_sums(width),
    )


def _enlarge(stores: Stores, capacity: int, pattern: Pattern) -> Stores:
    def enlarge(store: Tensor, count: int) -> Tensor:
        rows, groups, held, width = store.shape
        larger = store.new_empty(rows, groups, count, width)
        larger[:, :, :held] = store
        return larger

    slots = pattern.num_slots(capacity)
    return replace(
        stores,
        compressed_keys=enlarge(stores.compressed_keys, slots),
        compressed_values=enlarge(stores.compressed_values, slots),
        selected_keys=enlarge(stores.selected_keys, capacity),
        selected_values=enlarge(stores.selected_values, capacity),
    )
