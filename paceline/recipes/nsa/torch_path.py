"""The stages in plain torch: for CPUs, for small runs, and wherever there is no kernel.

Queries come in chunks, so that the scores of all of them never exist at once; a chunk's are computed again in backward. Scores and weights
are in fp32 (float64 for float64), whatever the type of the states: what is hidden gets exactly 0, so that no bit of it can be seen.

Shapes: B rows, T tokens, Q queries of a chunk, S keys, N slots, H heads, G groups, R heads of a group, D width, n selected, J blocks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from paceline.recipes.nsa.cache import SparseCache
from paceline.recipes.nsa.compression import compress
from paceline.recipes.nsa.gates import mix_branches
from paceline.recipes.nsa.look import grouped_scores, masked_look, soft_look
from paceline.recipes.nsa.pattern import Frame, Pattern
from paceline.recipes.nsa.selection import choose_blocks, score_blocks
from paceline.recipes.nsa.stages import Stages

MOST_SCORES = 2**24
"""of a chunk: 64 MiB in fp32, and a few times that while they become weights"""

Look = Callable[[Tensor, Tensor, Tensor, slice], tuple[Tensor, ...]]
"""what a chunk of queries finds: (B, Q, H, D), and logarithms (B, H, Q) where they are wanted"""


def attend_compressed(
    query_BTHD: Tensor, keys_BNGD: Tensor, values_BNGD: Tensor, frame: Frame
) -> tuple[Tensor, Tensor]:
    def look(query: Tensor, keys: Tensor, values: Tensor, chunk: slice) -> tuple[Tensor, Tensor]:
        return soft_look(query, keys, values, _sees_slots(frame, chunk, keys.shape[1])[:, None])

    mixed, logsum = _in_chunks(look, query_BTHD, keys_BNGD, values_BNGD)
    return mixed, logsum


def select(query_BTHD: Tensor, keys_BNGD: Tensor, logsum_BHT: Tensor, frame: Frame, pattern: Pattern) -> Tensor:
    rows, length, heads, _ = query_BTHD.shape
    num_slots, groups = keys_BNGD.shape[1:3]
    num_selection = pattern.num_selection(length)
    chosen = []
    with torch.no_grad():
        for chunk in split_queries(length, rows * heads * max(num_slots, num_selection)):
            scores_BGRQN = grouped_scores(query_BTHD[:, chunk], keys_BNGD)
            logsum_BGRQ = logsum_BHT[:, :, chunk].reshape(rows, groups, heads // groups, -1)
            sees_BQN = _sees_slots(frame, chunk, num_slots)
            # Where a query sees nothing its logarithm is -inf, and so is every score.
            weights_BGRQN = (scores_BGRQN - logsum_BGRQ[..., None]).exp().masked_fill(~sees_BQN[:, None, None], 0.0)
            scores_BGQJ = score_blocks(weights_BGRQN.sum(2), frame.first_BT[:, chunk], num_selection, pattern)
            chosen.append(choose_blocks(scores_BGQJ, frame.positions_BT[:, chunk], pattern))
    return torch.cat(chosen, dim=1)


def attend_selected(
    query_BTHD: Tensor, keys_BTGD: Tensor, values_BTGD: Tensor, blocks_BTGn: Tensor, frame: Frame, pattern: Pattern
) -> Tensor:
    length = query_BTHD.shape[1]
    num_selection = pattern.num_selection(length)

    def look(query: Tensor, keys: Tensor, values: Tensor, chunk: slice) -> tuple[Tensor]:
        blocks_BGQn = blocks_BTGn[:, chunk].transpose(1, 2)
        rows, groups, queries, _ = blocks_BGQn.shape
        # One place more, for the blocks that are none.
        is_chosen = torch.zeros(rows, groups, queries, num_selection + 1, dtype=torch.bool, device=query.device)
        is_chosen.scatter_(3, blocks_BGQn % (num_selection + 1), True)
        is_chosen[..., num_selection] = False
        block_of_key_BS = frame.positions_BT[:, : chunk.stop] // pattern.selection_block
        sees_BGQS = is_chosen.gather(3, block_of_key_BS[:, None, None].expand(-1, groups, queries, -1))
        sees_BGQS &= _sees_past(frame, chunk, slice(0, chunk.stop))[:, None]
        return (masked_look(query, keys[:, : chunk.stop], values[:, : chunk.stop], sees_BGQS),)

    return _in_chunks(look, query_BTHD, keys_BTGD, values_BTGD)[0]


def attend_window(query_BTHD: Tensor, keys_BTGD: Tensor, values_BTGD: Tensor, frame: Frame, pattern: Pattern) -> Tensor:
    def look(query: Tensor, keys: Tensor, values: Tensor, chunk: slice) -> tuple[Tensor]:
        reach = slice(max(0, chunk.start - pattern.window + 1), chunk.stop)
        sees_BQS = _sees_past(frame, chunk, reach)
        index_S = torch.arange(reach.start, reach.stop, device=query.device)
        index_Q1 = torch.arange(chunk.start, chunk.stop, device=query.device)[:, None]
        sees_BQS &= index_S > index_Q1 - pattern.window
        return (masked_look(query, keys[:, reach], values[:, reach], sees_BQS[:, None]),)

    return _in_chunks(look, query_BTHD, keys_BTGD, values_BTGD, reach=pattern.window)[0]


def lay_out(frame: Frame, pattern: Pattern) -> Frame:
    """Nothing more."""
    return frame


def mix(gates_BTH3: Tensor, compressed_BTHD: Tensor, selected_BTHD: Tensor, window_BTHD: Tensor) -> Tensor:
    return mix_branches(gates_BTH3, compressed_BTHD, selected_BTHD, window_BTHD)


TORCH = Stages(lay_out, compress, attend_compressed, select, attend_selected, attend_window, mix, SparseCache)


def split_queries(length: int, scores_per_query: int, most: int | None = None) -> list[slice]:
    """By shapes alone: the same chunks, and so the same bits, whatever the numbers."""
    at_once = max(16, MOST_SCORES // scores_per_query)
    at_once = at_once if most is None else min(at_once, most)
    return [slice(start, min(start + at_once, length)) for start in range(0, length, at_once)]


def _in_chunks(
    look: Look, query_BTHD: Tensor, keys_BSGD: Tensor, values_BSGD: Tensor, reach: int | None = None
) -> tuple[Tensor, ...]:
    """All chunks' results side by side; of several chunks, each is computed again in backward. `reach`: how far back a query looks."""
    rows, length, heads, _ = query_BTHD.shape
    chunks = split_queries(length, rows * heads * keys_BSGD.shape[1])
    if reach is not None and len(chunks) > 1:
        # Longer chunks would score more pairs in vain, shorter ones would be many.
        most = max(64, reach)
        chunks = split_queries(length, rows * heads * (reach + most), most)
    parts = []
    for chunk in chunks:
        states = query_BTHD[:, chunk], keys_BSGD, values_BSGD
        if len(chunks) > 1 and torch.is_grad_enabled():
            parts.append(checkpoint(look, *states, chunk, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(look(*states, chunk))
    mixed, *logsums = zip(*parts, strict=True)
    return torch.cat(mixed, dim=1), *(torch.cat(each, dim=2) for each in logsums)


def _sees_slots(frame: Frame, chunk: slice, num_slots: int) -> Tensor:
    """(B, Q, N): compressed blocks of the query's document that end with it or before it."""
    slots_N = torch.arange(num_slots, device=frame.first_BT.device)
    return (slots_N >= frame.first_BT[:, chunk, None]) & (slots_N < frame.seen_BT[:, chunk, None])


def _sees_past(frame: Frame, chunk: slice, keys: slice) -> Tensor:
    """(B, Q, S): tokens of the query's document up to itself."""
    device = frame.starts_BT.device
    index_S = torch.arange(keys.start, keys.stop, device=device)
    index_Q1 = torch.arange(chunk.start, chunk.stop, device=device)[:, None]
    return (index_S >= frame.starts_BT[:, chunk, None]) & (index_S <= index_Q1)
