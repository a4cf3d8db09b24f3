"""Where a language model's tokens come from, before any of them is read: what identifies them, and how many there are to choose from.

The command line imports this, so neither torch nor numpy is loaded here.

    identify_data(data)       -> "tokens:5b0e…"     the same for a copy of the shards in another place
    read_vocabulary(data)     -> 258
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.recipes.nsa.data.manifest import Manifest, load_manifest, load_stored_tokenizer
from paceline.recipes.nsa.data.tokenizer import BYTES, Tokenizer, check_same, load_tokenizer
from paceline.recipes.nsa.data_config import CORPUS_VERSION, NEEDLE_VERSION, SYNTHETIC_VERSION, Data, check_data

NEEDLE_NAMES = 64
"""keys that a needle may have, and as many tokens that a value may be made of"""


def find_shards(data: Data) -> tuple[Path, Manifest]:
    """The directory, and what it holds; DataError where it cannot be trained on, or by this tokenizer."""
    problems = list(check_data(data))
    if problems:
        raise ConfigError(problems=problems)
    directory = Path(str(data.path)).expanduser()
    # A run may be looked at from elsewhere: a relative path is then another one.
    seen_from = "" if directory.is_absolute() else f" (seen from {Path.cwd()})"
    manifest = load_manifest(directory, f"data.path={data.path}{seen_from}")
    if data.tokenizer is not None:
        given = load_tokenizer(data.tokenizer)
        do = "leave data.tokenizer out: the shards' own is taken; or prepare the text again with this one, into another --out DIR"
        check_same(given.identity, manifest.tokenizer, f"data.tokenizer={data.tokenizer}", f"data.path={data.path}", do)
    return directory, manifest


def find_tokenizer(data: Data) -> Tokenizer | None:
    """That of the samples; None where they are no text."""
    if data.source == "shards":
        directory, manifest = find_shards(data)
        return load_stored_tokenizer(directory, manifest)
    return load_tokenizer(data.tokenizer or BYTES) if data.source == "text" else None


def read_vocabulary(data: Data) -> int:
    """How many token ids there are; nothing but the manifest, or the tokenizer, is read."""
    if data.source == "shards":
        return find_shards(data)[1].tokenizer.vocabulary
    if data.source == "text":
        return load_tokenizer(data.tokenizer or BYTES).identity.vocabulary
    return data.vocabulary if data.source == "synthetic" else needle_vocabulary()


def needle_vocabulary() -> int:
    """Bytes with their two, a mark for what is planted, one for what is asked, then names and what values are made of."""
    return load_tokenizer(BYTES).identity.vocabulary + 2 + 2 * NEEDLE_NAMES


def identify_data(data: Data) -> str:
    """A digest of the tokens, or of all that they are generated from."""
    if data.source == "shards":
        return f"tokens:{find_shards(data)[1].digest()}"
    if data.source == "text":
        fingerprint = load_tokenizer(data.tokenizer or BYTES).identity.fingerprint
        return _identify("text", CORPUS_VERSION, data, ("documents", "seed"), tokenizer=fingerprint)
    if data.source == "synthetic":
        return _identify("synthetic", SYNTHETIC_VERSION, data, ("samples", "vocabulary", "seed", "length"))
    names = ("samples", "seed", "length", "needle_pairs", "needle_tokens", "needle_distance", "needle_first")
    return _identify("needle", NEEDLE_VERSION, data, names)


def _identify(kind: str, version: int, data: Data, names: tuple[str, ...], **more: Any) -> str:
    content = {"version": version} | {name: getattr(data, name) for name in names} | more
    return f"{kind}:{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"
