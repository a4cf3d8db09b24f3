"""Whether a document or an utterance is held out: a function of its words alone, so that the sides cannot overlap. No torch, no numpy.

    is_held_out("Once upon a time …", share=0.01)

Two with the same words in the same order are on the same side, wherever they were found and whatever blanks stand between their words: what
is evaluated was never trained on.
"""

from __future__ import annotations

import hashlib

_SALT = b"paceline split 1\n"
"""Another salt is another split: changing it makes old shards overlap with new ones."""


def is_held_out(text: str, share: float) -> bool:
    """Whether it is for validation, as about `share` of all documents are."""
    digest = hashlib.sha256(_SALT + " ".join(text.split()).encode())
    return int.from_bytes(digest.digest()[:8], "big") < int(share * 2**64)
