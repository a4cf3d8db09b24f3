"""The pairs that are trained and evaluated on, fetched many at a time: the same for an id on any rank of any number.

    SpeechSamples.fetch([7, 3], draw) ->
      audio        (2, 48000)  float32, each of mean 0 and variance 1, zeros after the end
      samples      (2,)        how many of them are speech
      tokens       (2, 21)     the words spoken there, padding after the end
      num_tokens   (2,)
      text_keys    (2,)        the same number for the same words

Rows are as long as the longest of the batch, rounded up: there are few lengths then, and what a GPU prepares for each (cuDNN's attention takes
a tenth of a second) is soon there. With data.crop=fixed exactly data.fixed_seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from paceline.recipes.csa.crops import (
    Audio,
    Crop,
    Ints,
    crop_lengths,
    draw_crop,
    draw_places,
    middle_crop,
    words_within,
)
from paceline.recipes.csa.data_config import RATE, Data
from paceline.recipes.csa.tokens import TextTokenizer
from paceline.recipes.csa.utterances import Utterances
from paceline.workload import Draw, SampleSet

_SOME, _LONGEST = 1000, 10
_AUDIO_GRAIN = RATE // 10
_TOKEN_GRAIN = 16


class SpeechSamples(SampleSet):
    """One pair per utterance: drawn in training, from the middle in an evaluation."""

    def __init__(
        self, utterances: Utterances, tokenizer: TextTokenizer, data: Data, shortest: int, *, is_drawn: bool
    ) -> None:
        self._utterances = utterances
        self._tokenizer = tokenizer
        seconds = data.seconds
        self._bounds = None if seconds is None else (int(seconds[0] * RATE), int(seconds[1] * RATE))
        self._fixed = max(shortest, int(data.fixed_seconds * RATE)) if data.crop == "fixed" else None
        self._shortest = shortest
        """samples that the encoder needs for one frame"""
        self._is_drawn = is_drawn
        self.is_heavy = data.source != "generated"

    def __len__(self) -> int:
        return len(self._utterances.transcripts)

    def fetch(self, ids: Sequence[int], draw: Draw) -> dict[str, Tensor]:
        numbers = np.asarray(ids, np.int64)
        length_at, start_at = draw_places(draw, numbers) if self._is_drawn else (numbers * 0.0, numbers * 0.0)
        heard, texts = [], []
        for number, length, start in zip(numbers.tolist(), length_at.tolist(), start_at.tolist(), strict=True):
            audio, crop = self._hear(number, length, start)
            heard.append(audio)
            texts.append(words_within(self._utterances.transcripts[number], crop))
        # What is too short for one frame is filled up with silence, which then counts as speech.
        samples = np.array([max(len(audio), self._shortest) for audio in heard], np.int64)
        rows = np.zeros(
            (len(heard), self._fixed or _round_up(int(samples.max()), _AUDIO_GRAIN, self.longest)), np.float32
        )
        for row, audio in zip(rows, heard, strict=True):
            row[: len(audio)] = _normalise(audio)
        tokens = self._tokenizer.encode(texts)
        num_tokens = np.array([len(row) for row in tokens], np.int64)
        width = _round_up(int(num_tokens.max()), _TOKEN_GRAIN, self._tokenizer.limit)
        padded = np.full((len(tokens), width), self._tokenizer.padding, np.int64)
        for number, ids_ in enumerate(tokens):
            padded[number, : len(ids_)] = ids_
        return {
            "audio": torch.from_numpy(rows),
            "samples": torch.from_numpy(samples),
            "tokens": torch.from_numpy(padded),
            "num_tokens": torch.from_numpy(num_tokens),
            "text_keys": torch.tensor([_text_key(text) for text in texts]),
        }

    def _hear(self, number: int, length_at: float, start_at: float) -> tuple[Audio, Crop]:
        def choose(total: int) -> Crop:
            if self._is_drawn:
                return draw_crop(total, self._bounds, length_at, start_at)
            return middle_crop(total, self._bounds)

        return self._utterances.hear(number, choose)

    @property
    def hours(self) -> float:
        """Of whole utterances."""
        return float(self._utterances.samples.sum()) / RATE / 3600

    @property
    def longest(self) -> int:
        """Samples of the longest row there can be."""
        longest = int(self._utterances.samples.max())
        bounded = longest if self._bounds is None else min(longest, self._bounds[1])
        return self._fixed or max(self._shortest, bounded)

    @cached_property
    def most_tokens(self) -> int:
        """Of the longest transcript; a crop has a share of them."""
        longest = sorted(self._utterances.transcripts, key=len)[-_LONGEST:]
        return max(len(row) for row in self._tokenizer.encode(longest))

    @cached_property
    def mean_tokens(self) -> float:
        """Tokens of a pair, on average, from as many utterances as say it well enough: as much of them as is heard of the utterance."""
        some = np.arange(0, len(self), max(1, len(self) // _SOME))
        rows = self._tokenizer.encode([self._utterances.transcripts[number] for number in some.tolist()])
        share = self.mean_seconds(some.tolist()) * RATE / float(self._utterances.samples[some].sum())
        return max(1.0, share * float(np.mean([len(row) for row in rows])))

    def mean_seconds(self, ids: Sequence[int]) -> float:
        """Of speech that these samples have, on average over all epochs: what is drawn does not count here."""
        samples = self._utterances.samples[np.asarray(ids, np.int64)]
        if self._bounds is None:
            return float(samples.sum()) / RATE
        return float(sum(np.minimum(samples, bound).sum() for bound in self._bounds)) / 2 / RATE


class MeasuredSamples(SpeechSamples):
    """Those whose lengths are told beforehand, so that a step can be shared out by them."""

    def lengths(self, ids: Sequence[int], draw: Draw) -> Ints:
        """Samples of each crop; where silence is cut off as it is read, as if none were."""
        numbers = np.asarray(ids, np.int64)
        return crop_lengths(self._utterances.samples[numbers], self._bounds, draw_places(draw, numbers)[0])


def _round_up(length: int, grain: int, most: int) -> int:
    return min(-(-length // grain) * grain, most)


def _normalise(audio: Audio) -> Audio:
    """As wav2vec2 was trained on: silence stays silence."""
    centred = audio - audio.mean(dtype=np.float64).astype(np.float32)
    spread = np.sqrt(np.square(centred).mean(dtype=np.float64) + 1e-7).astype(np.float32)
    normalised: Audio = centred / spread
    return normalised


def _text_key(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
