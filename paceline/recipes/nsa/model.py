"""The language model: tokens in, the loss of the next ones out; embeddings tied, attention native sparse or dense.

    model = LanguageModel(vocabulary=50257, layers=12, shape=Shape(768, 12, 2, 64), feed_forward=2048, stages=TORCH)
    model(batch)                    the summed loss, a scalar
    count_parameters(model)         {"embedding": …, "attention": …, …}

A batch is what batch.py describes: rows of packed documents. Shapes: B rows, T tokens, W width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from paceline.recipes.nsa.attention import DenseAttention, Shape, SparseAttention, dense_mask
from paceline.recipes.nsa.block import Block, Cache, start_weights
from paceline.recipes.nsa.gates import Gates, summarise
from paceline.recipes.nsa.head import score_tokens, sum_losses
from paceline.recipes.nsa.pattern import Frame
from paceline.recipes.nsa.stages import Stages


class LanguageModel(nn.Module):
    """`kernel`: of the dense twin, one of the engine's; None: sparse, by `stages`, or by the reference where these are None.

    `is_packed`: rows may hold several documents; where they never do, the dense twin needs no mask.
    """

    def __init__(
        self,
        vocabulary: int,
        layers: int,
        shape: Shape,
        feed_forward: int,
        *,
        stages: Stages | None = None,
        kernel: str | None = None,
        is_packed: bool = True,
        is_marked: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.is_sparse = kernel is None
        self._is_packed = is_packed

        def build_attention() -> SparseAttention | DenseAttention:
            return SparseAttention(shape, stages, is_marked) if kernel is None else DenseAttention(shape, kernel)

        self.token_embedding = nn.Embedding(vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(build_attention(), shape.width, feed_forward) for _ in range(layers))
        self.final_norm = nn.RMSNorm(shape.width, eps=1e-6)
        start_weights(self, layers)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The loss, summed over all labels: a scalar in fp32."""
        hidden_BTW = self.encode(batch["input_ids"], batch["positions"])
        total: Tensor = sum_losses(hidden_BTW.flatten(0, 1), self.token_embedding.weight, batch["labels"].flatten())
        return total

    def encode(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        caches: Sequence[Cache] | None = None,
        blocks: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """(B, T, W) after the last norm. Empty caches are filled; `blocks`: each layer's selected ones, where they are not to be selected."""
        frame = self.build_frame(positions_BT)
        hidden_BTW = self.token_embedding(tokens_BT)
        mask = dense_mask(frame) if not self.is_sparse and self._is_packed and caches is None else None
        for number, block in enumerate(self.blocks):
            cache = None if caches is None else caches[number]
            hidden_BTW = block(hidden_BTW, frame, cache, mask if blocks is None else blocks[number])
        normed: Tensor = self.final_norm(hidden_BTW)
        return normed

    def score(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(B, T) each: the loss of every label, and whether it is the likeliest token."""
        hidden_BTW = self.encode(batch["input_ids"], batch["positions"])
        labels_BT = batch["labels"]
        scored = score_tokens(hidden_BTW.flatten(0, 1), self.token_embedding.weight, labels_BT.flatten())
        losses_BT, is_right_BT = (values.view_as(labels_BT) for values in scored)
        return losses_BT, is_right_BT

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def build_frame(self, positions_BT: Tensor) -> Frame:
        """Never compiled: a compiler would work the angles out in every layer again, rather than read them."""
        first = self.blocks[0]
        assert isinstance(first, Block)
        if self.training:
            for gates in self._gates:
                gates.make_room(positions_BT.device)
        return first.attention.build_frame(positions_BT, self.token_embedding.weight.dtype)

    def build_caches(self) -> list[Cache]:
        """Empty ones, one per layer."""
        return [block.attention.build_cache() for block in self.blocks if isinstance(block, Block)]

    def observe(self) -> dict[str, float]:
        """What the gates did in the last training forward; empty before it, and of the dense twin. Waits for the device."""
        with torch.no_grad():
            return summarise(self._gates)

    @property
    def _gates(self) -> Iterator[Gates]:
        """Those of each layer; none of the dense twin."""
        attentions = (block.attention for block in self.blocks if isinstance(block, Block))
        return (each.gates for each in attentions if isinstance(each, SparseAttention))


def count_parameters(model: LanguageModel) -> dict[str, int]:
    """By part, and in total; the embedding counts once, though it is the output's weights as well."""
    counts = dict.fromkeys(("embedding", "attention", "compression", "gates", "feed_forward", "norms"), 0)
    for name, parameter in model.named_parameters():
        if "token_embedding" in name:
            part = "embedding"
        elif "norm" in name:
            part = "norms"
        elif ".compress_" in name:
            part = "compression"
        else:
            part = next(part for part in ("gates", "feed_forward", "attention") if f".{part}." in name)
        counts[part] += parameter.numel()
    return counts | {"total": sum(counts.values())}
