"""The model: a causal transformer over a user's items, whose last state is compared with the embedding of every item.

SASRec, with `model.time` TiSASRec, each with or without `model.mhc`. An item's score is the product of `item_weights` with the hidden
state; with `model.scores=cosine` both come normed, the state over the temperature, so whoever multiplies them need not know.

Shapes: B rows, L positions, T computed positions (groups.py), D width, N items. Items are 1 … N, 0 is padding at the end. Positions count
from the start of the window, so that what a prefix says does not depend on what follows it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.recipes.sasrec.block import Block
from paceline.recipes.sasrec.config import Model
from paceline.recipes.sasrec.frame import Frame
from paceline.recipes.sasrec.groups import Group, find_groups
from paceline.recipes.sasrec.hyper import HyperResidual, Streams
from paceline.recipes.sasrec.interactions import PADDING
from paceline.recipes.sasrec.negatives import position_keys
from paceline.recipes.sasrec.norm import Norm
from paceline.recipes.sasrec.relations import RelationTables
from paceline.recipes.sasrec.rotary import build_rotation
from paceline.recipes.sasrec.samples import Tensors


class Recommender(nn.Module):
    """Embeddings, blocks, a last norm (pre-norm only), and the loss, so that a data-parallel wrapper sees every use of every parameter."""

    def __init__(
        self,
        num_items: int,
        max_length: int,
        config: Model,
        loss: nn.Module,
        attention: str,
        needs_even_calls: bool = False,
    ) -> None:
        super().__init__()
        self._needs_even_calls = needs_even_calls
        self._config = config
        self.loss = loss
        self.item_embedding = nn.Embedding(num_items + 1, config.width, padding_idx=PADDING)
        # TiSASRec tells positions to keys and values instead, from its own tables.
        is_told = config.positions == "learned" and not config.time
        self.position_embedding = nn.Embedding(max_length, config.width) if is_told else None
        self.relation_tables = RelationTables(max_length, config) if config.time else None
        self.dropout = nn.Dropout(config.dropout)
        self.streams = Streams(config) if config.mhc else None
        self.blocks = nn.ModuleList(Block(config, attention, number) for number in range(config.blocks))
        self.final_norm = Norm(config.width, keeps_fp32=True) if config.norm == "pre" else nn.Identity()
        self.apply(_initialise)

    def forward(self, batch: Tensors) -> Tensor:
        """The loss, summed over all targets: a scalar in fp32."""
        hidden_TD, places_T = self.encode(batch)
        targets_T, keys_T = batch["targets"].flatten(), None
        if "keys" in batch:
            keys_T = position_keys(batch["keys"], batch["targets"].shape[1]).flatten()
        if places_T is not None:
            targets_T = targets_T[places_T]
            keys_T = None if keys_T is None else keys_T[places_T]
        loss: Tensor = self.loss(hidden_TD, self.item_weights(), targets_T, keys_T, batch.get("negatives"))
        return loss

    def encode(self, batch: Tensors) -> tuple[Tensor, Tensor | None]:
        """Hidden states (T, D) after the last norm, and their places in the flattened (B · L); None: all of them."""
        groups = find_groups(batch["items"], is_one=self._needs_even_calls and self.training)
        places_T = None if groups is None else torch.cat([group.places_T for group in groups])
        state = self._embed(batch["items"], places_T)
        if self.streams is not None:
            state = self.streams.open(state)
        if groups is None:
            state = self._transform(state, self._build_frame(batch))
        else:
            parts = torch.split(state, [len(group.places_T) for group in groups])
            frames = [self._build_frame(batch, group) for group in groups]
            state = torch.cat([self._transform(part, frame) for part, frame in zip(parts, frames, strict=True)])
        if self.streams is not None:
            state = self.streams.close(state)
        hidden_TD = self.final_norm(state)
        if self._config.scores == "cosine":
            hidden_TD = F.normalize(hidden_TD.float(), dim=1) / self._config.temperature
        return hidden_TD, places_T

    def last_hidden(self, batch: Tensors) -> Tensor:
        """(B, D) in fp32: the state after each row's last item, `lengths` of them."""
        hidden_TD, places_T = self.encode(batch)
        rows, length = batch["items"].shape
        last_B = torch.arange(rows, device=hidden_TD.device) * length + batch["lengths"] - 1
        if places_T is not None:
            index_BL = torch.zeros(rows * length, dtype=torch.int64)
            index_BL[places_T] = torch.arange(len(places_T))
            last_B = index_BL[last_B]
        return hidden_TD.index_select(0, last_B).float()

    def item_weights(self) -> Tensor:
        """(N + 1, D): what hidden states are multiplied with, the embeddings that go in as well; row 0 is padding."""
        weights_ND = self.item_embedding.weight
        return F.normalize(weights_ND, dim=1) if self._config.scores == "cosine" else weights_ND

    def observe(self) -> dict[str, float]:
        """What is worth logging of the last training forward; empty before the first one. Waits for the device."""
        spread = None if self.streams is None else self.streams.spread()
        if spread is None:
            return {}
        connections = [module for module in self.modules() if isinstance(module, HyperResidual)]
        deviations = [deviation for each in connections if (deviation := each.worst_deviation()) is not None]
        return {"mhc_deviation": torch.stack(deviations).amax().item(), "mhc_stream_spread": spread.item()}

    def _transform(self, state: Tensor, frame: Frame) -> Tensor:
        for block in self.blocks:
            state = block(state, frame)
        return state

    def _build_frame(self, batch: Tensors, group: Group | None = None) -> Frame:
        """What the blocks have to know of a group of rows; None: of all rows."""
        config, items_BL = self._config, batch["items"]
        rows, length = items_BL.shape if group is None else (len(group.rows_G), group.length)
        rotation = relations = None
        if config.positions == "rotary":
            rotation = build_rotation(length, config.width // config.heads, items_BL.device)
        if self.relation_tables is not None:
            times = (batch[name] if group is None else group.cut(batch[name]) for name in ("elapsed", "scale"))
            relations = self.relation_tables(*times)
        return Frame(rows, length, None if group is None else group.inside_T, rotation, relations)

    def _embed(self, items_BL: Tensor, places_T: Tensor | None) -> Tensor:
        length = items_BL.shape[1]
        items_T = items_BL.flatten() if places_T is None else items_BL.flatten()[places_T]
        hidden_TD = self.item_embedding(items_T) * math.sqrt(self._config.width)
        if self.position_embedding is not None:
            if places_T is not None:
                hidden_TD = hidden_TD + self.position_embedding(places_T % length)
            else:
                positions_LD = self.position_embedding.weight[:length]
                hidden_TD = (hidden_TD.unflatten(0, items_BL.shape) + positions_LD).flatten(0, 1)
        return self.dropout(hidden_TD)  # type: ignore[no-any-return]


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()
