"""A small tokenizer in the form of GPT-2's files."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.recipes.nsa.data.tokenizer_file import byte_alphabet


def gpt2_files(place: Path, *extra: str) -> Path:
    """256 bytes, two merges, the token that ends a document."""
    place.mkdir(parents=True, exist_ok=True)
    tokens = [*byte_alphabet(), "he", "Ġa", *extra, "<|endoftext|>"]
    (place / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (place / "merges.txt").write_text("#version: 0.2\nh e\nĠ a\n")
    return place
