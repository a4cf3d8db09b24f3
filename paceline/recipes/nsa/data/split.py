"""The two sides of a language model's documents, and on which of them a document is. No torch, no numpy."""

from __future__ import annotations

from paceline.recipes.held_out import is_held_out

SPLITS = ("train", "validation")


def side_of(text: str, share: float) -> str:
    return SPLITS[is_held_out(text, share)]
