"""What decoding keeps of the tokens so far, for one layer, and attention of the newest token over it, in plain torch.

    cache = SparseCache(pattern)
    cache.append(states, compress_keys, compress_values)      a prompt, or one token
    compressed, selected, window = cache.attend(query)        of the newest token, (B, 1, H, D) each
    mixed_B1HD = cache.step(query, states, gates, moment, compress_keys, compress_values)     one token and all of it

Of the compressed branch it keeps one key and one value per block, and of a block that is not whole yet the raw tokens; of the selected branch
all tokens, of which a query reads n blocks; of the window the last w. `bytes_read` counts what `attend` and the compression read of all that,
as a kernel would: each key and value once. All rows have the same length.

Shapes: B rows, T tokens, H heads, G groups, D width, N blocks, S keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.engine.backends import restricted
from paceline.recipes.nsa.compression import Compression
from paceline.recipes.nsa.gates import mix_branches
from paceline.recipes.nsa.look import grouped_scores, soft_look
from paceline.recipes.nsa.mark import Mark, mark_nothing
from paceline.recipes.nsa.moment import Moment
from paceline.recipes.nsa.pattern import Pattern
from paceline.recipes.nsa.rotary import build_rotation, rotate
from paceline.recipes.nsa.selection import choose_blocks, score_blocks
from paceline.recipes.nsa.stages import States, turn_keys


class SparseCache:
    can_replay = False

    def __init__(self, pattern: Pattern, mark: Mark = mark_nothing) -> None:
        self._pattern = pattern
        self._mark = mark
        self._pending_keys, self._pending_values = Store(), Store()
        self._compressed_keys, self._compressed_values = Store(), Store()
        self._selected_keys, self._selected_values = Store(), Store()
        self._window_keys, self._window_values = Ring(pattern.window), Ring(pattern.window)
        self.length = 0
        self.bytes_read = 0

    def append(self, states: States, compress_keys: Compression, compress_values: Compression) -> None:
        self._selected_keys.append(states.selected_keys)
        self._selected_values.append(states.selected_values)
        self._window_keys.append(states.window_keys)
        self._window_values.append(states.window_values)
        self._pending_keys.append(states.compressed_keys)
        self._pending_values.append(states.compressed_values)
        self.length += states.selected_keys.shape[1]
        self._compress(compress_keys, compress_values)

    def make_room(self) -> bool:
        """It grows as it is appended to."""
        return False

    def step(
        self,
        query_B1HD: Tensor,
        states: States,
        gates_B1H3: Tensor,
        moment: Moment,
        compress_keys: Compression,
        compress_values: Compression,
    ) -> Tensor:
        rotation = moment.rotation
        self.append(turn_keys(states, rotation), compress_keys, compress_values)
        compressed, selected, window = self.attend(rotate(query_B1HD, rotation))
        with self._mark("mix"):
            return mix_branches(gates_B1H3, compressed, selected, window)

    def advance(self) -> None:
        """Appending has counted it."""

    def attend(self, query_B1HD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What each branch gives for the newest token."""
        with self._mark("compressed"):
            compressed, logsum_BH1 = self._look_at_compressed(query_B1HD)
        with self._mark("select"):
            blocks_B1Gn = self._select(query_B1HD, logsum_BH1)
        with self._mark("selected"):
            selected = self._look_at_selected(query_B1HD, blocks_B1Gn)
        with self._mark("window"):
            window = self._look_at_window(query_B1HD)
        return compressed, selected, window

    def _compress(self, compress_keys: Compression, compress_values: Compression) -> None:
        """The pending tokens begin where the next block does."""
        num_new = self._pattern.num_compressed(self._pending_keys.length)
        if num_new:
            with self._mark("compress"):
                self._compress_blocks(num_new, compress_keys, compress_values)

    def _compress_blocks(self, num_new: int, compress_keys: Compression, compress_values: Compression) -> None:
        raw = self._pending_keys.read(), self._pending_values.read()
        self.bytes_read += num_new * self._pattern.block * sum(each[:, 0].numel() * each.element_size() for each in raw)
        first = self._compressed_keys.length
        keys, values = compress_blocks(*raw, first, self._pattern, compress_keys, compress_values)
        self._compressed_keys.append(keys)
        self._compressed_values.append(values)
        for store in (self._pending_keys, self._pending_values):
            store.drop(num_new * self._pattern.stride)

    def _look_at_compressed(self, query_B1HD: Tensor) -> tuple[Tensor, Tensor | None]:
        """(B, 1, H, D), and the logarithms of sums of exponentials (B, H, 1); zeros and None before the first block."""
        if not self._compressed_keys.length:
            return torch.zeros_like(query_B1HD), None
        keys, values = self._compressed_keys.read(), self._compressed_values.read()
        self._count(keys, values)
        return soft_look(query_B1HD, keys, values, _all(keys))

    def _select(self, query_B1HD: Tensor, logsum_BH1: Tensor | None) -> Tensor:
        """(B, 1, G, n), as `choose_blocks` gives them."""
        pattern, rows, device = self._pattern, len(query_B1HD), query_B1HD.device
        num_selection = pattern.num_selection(self.length)
        if logsum_BH1 is None:
            groups = self._selected_keys.read().shape[2]
            scores_BG1J = query_B1HD.new_zeros(rows, groups, 1, num_selection, dtype=torch.float32)
        else:
            scores_BGR1N = grouped_scores(query_B1HD, self._compressed_keys.read())
            weights_BGR1N = (scores_BGR1N - logsum_BH1.reshape(*scores_BGR1N.shape[:4], 1)).exp()
            first_B1 = torch.zeros(rows, 1, dtype=torch.int64, device=device)
            scores_BG1J = score_blocks(weights_BGR1N.sum(2), first_B1, num_selection, pattern)
        position_B1 = torch.full((rows, 1), self.length - 1, device=device)
        return choose_blocks(scores_BG1J, position_B1, pattern)

    def _look_at_selected(self, query_B1HD: Tensor, blocks_B1Gn: Tensor) -> Tensor:
        size, keys, values = self._pattern.selection_block, self._selected_keys.read(), self._selected_values.read()
        blocks_BGn1 = blocks_B1Gn[:, 0, :, :, None]
        index_BGS = (blocks_BGn1 * size + torch.arange(size, device=keys.device)).flatten(2)
        sees_BGS = (blocks_BGn1 >= 0).expand(-1, -1, -1, size).flatten(2) & (index_BGS < self.length)
        index_BSG1 = index_BGS.clamp(0, self.length - 1).transpose(1, 2)[..., None].expand(-1, -1, -1, keys.shape[-1])
        found_keys, found_values = keys.gather(1, index_BSG1), values.gather(1, index_BSG1)
        num_tokens = self._pattern.num_selected(self.length)
        self._count(found_keys[:, :num_tokens], found_values[:, :num_tokens])
        return soft_look(query_B1HD, found_keys, found_values, sees_BGS[:, :, None])[0]

    def _look_at_window(self, query_B1HD: Tensor) -> Tensor:
        keys, values = self._window_keys.read(), self._window_values.read()
        self._count(keys, values)
        return soft_look(query_B1HD, keys, values, _all(keys))[0]

    def _count(self, *states: Tensor) -> None:
        self.bytes_read += sum(each.numel() * each.element_size() for each in states)


def compress_blocks(
    keys_BTGD: Tensor,
    values_BTGD: Tensor,
    first: int,
    pattern: Pattern,
    compress_keys: Compression,
    compress_values: Compression,
) -> tuple[Tensor, Tensor]:
    """(B, N, G, D) each, turned: of all blocks that are whole in these tokens, which begin where block `first` does."""
    keys, values = (
        states.unfold(1, pattern.block, pattern.stride).transpose(-2, -1) for states in (keys_BTGD, values_BTGD)
    )
    numbers = torch.arange(keys.shape[1], device=keys.device) + first
    begins_BN = (numbers * pattern.stride).expand(len(keys), -1)
    rotation = build_rotation(begins_BN, keys.shape[-1], keys.dtype)
    return rotate(compress_keys(keys), rotation).to(keys.dtype), compress_values(values).to(values.dtype)


class DenseCache:
    """The same for the dense twin: all keys and values, all read for every token."""

    can_replay = False

    def __init__(self) -> None:
        self._keys, self._values = Store(), Store()
        self.bytes_read = 0

    @property
    def length(self) -> int:
        return self._keys.length

    def make_room(self) -> bool:
        return False

    def advance(self) -> None:
        """Appending has counted it."""

    def append(self, keys_BTGD: Tensor, values_BTGD: Tensor) -> None:
        self._keys.append(keys_BTGD)
        self._values.append(values_BTGD)

    def read(self) -> tuple[Tensor, Tensor]:
        """(B, T, G, D) each."""
        return self._keys.read(), self._values.read()

    def attend(self, query_B1HD: Tensor) -> Tensor:
        """By torch's SDPA, which splits a single query's keys over a GPU. Without cuDNN, which prepares itself anew for every length: 5 ms."""
        keys, values = self.read()
        self.bytes_read += sum(each.numel() * each.element_size() for each in (keys, values))
        query, keys, values = (states.transpose(1, 2) for states in (query_B1HD, keys, values))
        with restricted(("flash", "efficient", "math")):
            return F.scaled_dot_product_attention(query, keys, values, enable_gqa=True).transpose(1, 2)


class Store:
    """States one after another, in a tensor that doubles when it is full."""

    def __init__(self) -> None:
        self._held: Tensor | None = None
        self.length = 0

    def append(self, states_BTGD: Tensor) -> None:
        rows, count, *rest = states_BTGD.shape
        if self._held is None or self.length + count > self._held.shape[1]:
            larger = states_BTGD.new_empty(rows, max(2 * self.length, self.length + count), *rest)
            if self._held is not None:
                larger[:, : self.length] = self.read()
            self._held = larger
        self._held[:, self.length : self.length + count] = states_BTGD
        self.length += count

    def read(self) -> Tensor:
        assert self._held is not None, "nothing was appended yet"
        return self._held[:, : self.length]

    def drop(self, count: int) -> None:
        """Forgets the oldest."""
        self._held = self.read()[:, count:].clone()
        self.length -= count


class Ring:
    """The newest `size` states, in no order that matters: attention does not see it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: Tensor | None = None
        self._length = 0

    def append(self, states_BTGD: Tensor) -> None:
        if self._held is None:
            rows, _, *rest = states_BTGD.shape
            self._held = states_BTGD.new_empty(rows, self._size, *rest)
        self._length += states_BTGD.shape[1]
        newest = states_BTGD[:, -self._size :]
        places = torch.arange(self._length - newest.shape[1], self._length, device=newest.device) % self._size
        self._held[:, places] = newest

    def read(self) -> Tensor:
        assert self._held is not None, "nothing was appended yet"
        return self._held[:, : min(self._length, self._size)]


def _all(keys_BSGD: Tensor) -> Tensor:
    """Everything is in the past of the newest token."""
    return torch.ones(1, 1, 1, keys_BSGD.shape[1], dtype=torch.bool, device=keys_BSGD.device)
