"""The section `data` of a speech-text alignment's configuration. No torch, no numpy.

paceline train csa data.source=manifest data.manifest=data/librispeech/manifest.tsv data.validation_split=dev-clean
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from paceline.config import sections
from paceline.config.sections import IDENTITY, Bool, key
from paceline.errors import Problem

CORPUS_VERSION = 1
"""Raised whenever corpus.py speaks other sentences, or the same ones otherwise, from the same numbers."""
MOST_WORDS = 40
"""that corpus.py knows"""
RATE = 16_000
"""samples per second that speech encoders listen at"""


class Data(sections.Data):
    source: Literal["generated", "manifest", "tree"] = key(
        "generated",
        "generated: sentences of tones, one chord per word; manifest: what `paceline prepare librispeech` wrote; tree: LibriSpeech as "
        "it was published, mono FLAC of 16 kHz.",
        IDENTITY,
    )
    # Manifest and path are free: the digest of what they hold (identify_data) identifies it.
    manifest: str | None = key(None, "For manifest: its file.", min_length=1)
    path: str | None = key(None, "For tree: the directory that holds the splits.", min_length=1)
    splits: list[str] | None = key(
        None, "Which splits to train on; null: all but data.validation_split.", IDENTITY, min_length=1
    )
    validation_split: str | None = key(
        None, "Which split to evaluate; null: a share of data.splits is held out.", IDENTITY, min_length=1
    )
    validation_share: float = key(
        0.1,
        "Without a validation split: the share of utterances held out, by their words, so that none is on both sides.",
        IDENTITY,
        gt=0,
        lt=1,
    )
    trim: Literal["none", "runtime"] = key(
        "none",
        "runtime: silence at both ends is cut off whenever a file is read; none: utterances as they are.",
        IDENTITY,
    )
    top_db: float = key(60.0, "For trim runtime: so far below the loudest part is silence.", IDENTITY, gt=0)
    crop: Literal["random", "fixed", "whole"] = key(
        "random",
        "What is trained on of an utterance: between min_seconds and max_seconds of it, drawn anew each epoch; exactly fixed_seconds; "
        "or all of it.",
        IDENTITY,
    )
    min_seconds: float = key(1.0, "For crop random: the shortest.", IDENTITY, gt=0, le=600)
    max_seconds: float = key(
        3.0, "For crop random: the longest, and what is evaluated, from the middle.", IDENTITY, gt=0, le=600
    )
    fixed_seconds: float = key(
        2.0, "For crop fixed: every row has exactly so much; shorter utterances are filled up.", IDENTITY, gt=0, le=600
    )
    bucket: Bool = key(
        True,
        "Sort the samples of a step by length before they are shared out, on all ranks alike: less padding.",
        sections.NUMERICS,
    )
    seed: int = key(
        0, "For generated: its seed, apart from run.seed, so that several seeds train on the same data.", IDENTITY, ge=0
    )
    sentences: int = key(1600, "For generated: sentences, both sides together.", IDENTITY, ge=10)
    words: int = key(24, "For generated: words of its vocabulary.", IDENTITY, ge=8, le=MOST_WORDS)
    noise: float = key(0.05, "For generated: noise, as a share of a tone's loudness.", IDENTITY, ge=0, le=10)

    @property
    def seconds(self) -> tuple[float, float] | None:
        """The shortest and the longest crop; None: whole utterances."""
        if self.crop == "whole":
            return None
        return (
            (self.min_seconds, self.max_seconds) if self.crop == "random" else (self.fixed_seconds, self.fixed_seconds)
        )


def check_data(data: Data) -> Iterator[Problem]:
    """What types alone cannot see."""
    if data.source == "manifest" and data.manifest is None:
        do = "set data.manifest to what `paceline prepare librispeech` wrote, or data.source=generated"
        yield Problem("data.source=manifest without data.manifest", "data.source and data.manifest", do)
    if data.source == "tree" and data.path is None:
        do = "set data.path to the directory that holds the splits, or data.source=generated"
        yield Problem("data.source=tree without data.path", "data.source and data.path", do)
    if data.source != "generated" and data.splits is not None and data.validation_split in data.splits:
        what = f"data.validation_split={data.validation_split} is also trained on: data.splits={data.splits}"
        do = "leave it out of data.splits, or leave data.validation_split out: a share is then held out"
        yield Problem(what, "data.validation_split and data.splits", do)
    if data.crop == "random" and data.min_seconds > data.max_seconds:
        what = f"data.min_seconds={data.min_seconds:g} is more than data.max_seconds={data.max_seconds:g}"
        yield Problem(
            what, "data.min_seconds and data.max_seconds", f"set data.max_seconds={data.min_seconds:g} or more"
        )


_USED = {
    "generated": {"seed", "sentences", "words", "noise"},
    "manifest": {"manifest", "splits", "validation_split", "trim", "top_db"},
    "tree": {"path", "splits", "validation_split", "trim", "top_db"},
}
_OF_CROP = {"random": {"min_seconds", "max_seconds"}, "fixed": {"fixed_seconds"}, "whole": set()}


def find_idle_data(data: Data) -> Iterator[tuple[str, str]]:
    """(key, reason) of the keys that change nothing with this source, or with these crops."""
    for chosen, used, reason in (
        (data.source, _USED, f"data.source={data.source}"),
        (data.crop, _OF_CROP, f"data.crop={data.crop}"),
    ):
        own = set().union(*used.values())
        for name in Data.model_fields:
            if name in own and name not in used[chosen]:
                yield f"data.{name}", reason
    if data.source != "generated":
        if data.trim == "none":
            yield "data.top_db", "data.trim=none"
        if data.validation_split is not None:
            yield "data.validation_share", f"data.validation_split={data.validation_split}"
    if data.crop == "fixed":
        yield "data.bucket", "data.crop=fixed: all samples are of one length"
