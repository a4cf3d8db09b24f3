"""What a csa configuration may say, what contradicts itself in it, and the recipe's entry in the registry. No torch, no numpy.

paceline train csa model.speech=models/wav2vec2-base model.text=models/bert-base-uncased data.source=manifest data.manifest=FILE
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal

from paceline.config import sections
from paceline.config.sections import IDENTITY, Bool, Section, key
from paceline.errors import Problem
from paceline.recipes.csa.data_config import Data, check_data, find_idle_data
from paceline.recipes.csa.source import identify_data as identify_speech
from paceline.workload import Recipe, Workload

BUILT = ("small", "base")
"""encoders that are built from a configuration of ours, with random weights"""

_PUBLISHED = {"speech": "facebook/wav2vec2-base", "text": "google-bert/bert-base-uncased"}


class Model(Section):
    speech: str = key(
        "small",
        "The speech encoder: small, or base (the shape of wav2vec2-base), both built with random weights; a directory with a wav2vec2 "
        "model of `transformers`; or its name on the Hub.",
        IDENTITY,
        min_length=1,
    )
    text: str = key(
        "small",
        "The text encoder: small, or base (the shape of BERT-base), both built with random weights, that read bytes; a directory with a "
        "BERT or RoBERTa model of `transformers` and its tokenizer; or its name on the Hub.",
        IDENTITY,
        min_length=1,
    )
    freeze_text: Bool = key(False, "Leave the text encoder as it is: only its projection is trained.", IDENTITY)
    text_pooling: Literal["mean", "cls"] = key(
        "mean", "What stands for a text: the mean of its tokens, or the first one.", IDENTITY
    )
    width: int = key(64, "Width of the embeddings that speech and text share.", IDENTITY, ge=2)
    dropout: float | None = key(
        None, "In both encoders; null: their own, which is 0 in small ones and 0.1 in base.", IDENTITY, ge=0, lt=1
    )
    temperature: float = key(0.07, "At the start; it is learned, and never below 0.01.", IDENTITY, ge=0.01, le=10)


class Evaluate(sections.Evaluate):
    train_pairs: int = key(0, "So many of the training pairs are evaluated as well, once, at the end; 0: none.", ge=0)


class CsaConfig(sections.RunConfig):
    """A whole csa configuration."""

    recipe: Literal["csa"] = key(..., "Which recipe trains.", IDENTITY)
    data: Data = key(Data(), "Speech with its words, read or generated.")
    model: Model = key(Model(), "The two encoders.")
    evaluate: Evaluate = key(Evaluate(), "When and how to evaluate.")


def build(config: CsaConfig) -> Workload:
    from paceline.recipes.csa.workload import CsaWorkload

    return CsaWorkload(config)


def identify_data(config: CsaConfig) -> str:
    return identify_speech(config.data)


def check(config: CsaConfig) -> list[Problem]:
    """Contradictions that types alone cannot see."""
    return [*check_data(config.data), *_check_encoders(config.model), *_check_batch(config)]


def _check_encoders(model: Model) -> Iterator[Problem]:
    for name, given in (("speech", model.speech), ("text", model.text)):
        # What cannot be a name on the Hub is a path; a name is looked for when the encoder is loaded.
        is_path = given.startswith((".", "/", "~")) or given.count("/") > 1
        if is_path and not Path(given).expanduser().is_dir():
            do = (
                f"where there is a network: hf download {_PUBLISHED[name]} --local-dir {given}; copy that directory here; "
                f"or set model.{name}={' or '.join(BUILT)}, with random weights"
            )
            yield Problem(f"there is no encoder in {given}: no such directory", f"model.{name}", do)


def _check_batch(config: CsaConfig) -> Iterator[Problem]:
    if config.train.global_batch < 2:
        what = f"train.global_batch={config.train.global_batch} leaves nothing to tell a pair from: every other pair of the batch is a negative"
        yield Problem(what, "train.global_batch", "set train.global_batch=2 or more; some hundred learn better")


def find_idle(config: CsaConfig, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """What was given and changes nothing, with the reason."""
    return ((name, reason) for name, reason in _list_idle(config) if name in given)


def _list_idle(config: CsaConfig) -> Iterator[tuple[str, str]]:
    yield from find_idle_data(config.data)


RECIPE = Recipe(
    name="csa", schema=CsaConfig, build=build, identify_data=identify_data, check=check, find_idle=find_idle
)
