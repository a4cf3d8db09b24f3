"""Attention of each query to the blocks chosen for it where rows are short, on the GPU: by tiles over its document's whole past, of which the
keys of other blocks are hidden.

out = attend_past(q, k, v, blocks, past, block, tiles)    # q (B, T, H, D), k and v (B, T, G, D), blocks (B, T, G, n)

A query of a short row reads most of its past anyway, and next to no time goes into finding its blocks: one word has a bit for each.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from paceline.recipes.nsa.kernels.range_attention import Stretch, Words, attend_range
from paceline.recipes.nsa.kernels.tiles import Tiles

MOST_BLOCKS = 32
"""of a row: as many as a word has bits. With the paper's 16 of them chosen a query reads three quarters of its past here, of twice as many
less than half."""
_ROWS = 128
"""queries of a group whose words one program makes"""


def attend_past(q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, past: Stretch, block: int, tiles: Tiles) -> Tensor:
    """What each query reads in its blocks, up to itself; `blocks` has their numbers in its document, each once (-1: none).

    `past`: from the document's first token to the query itself.
    """
    return attend_range(q, k, v, past, "selected_past", tiles, Words(_write_words(blocks.contiguous()), block))[0]


@custom_op("paceline_nsa::words", mutates_args=())
def _write_words(blocks: Tensor) -> Tensor:
    """(B, G, T) int32: of each query and group, bit j is set where block j is chosen."""
    from paceline.recipes.nsa.kernels.past_kernels import nsa_chosen_past_words_kernel

    B, T, G, n = blocks.shape
    words = _new_words(blocks)
    nsa_chosen_past_words_kernel[(-(-T * G // _ROWS), B)](
        blocks, words, T, G=G, N=n, NP=1 << (n - 1).bit_length(), ROWS=_ROWS
    )
    return words


def _new_words(blocks: Tensor) -> Tensor:
    B, T, G, _ = blocks.shape
    return blocks.new_empty((B, G, T), dtype=torch.int32)


_write_words.register_fake(_new_words)
