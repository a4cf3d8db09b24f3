"""Pairs as they are fetched."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.recipes.csa.crops import Crop
from paceline.recipes.csa.data_config import Data
from paceline.recipes.csa.samples import MeasuredSamples, SpeechSamples
from paceline.recipes.csa.tokens import ByteTokens
from paceline.workload import Draw, Measured, Weighed

LENGTHS = [1_600, 8_000, 40_000, 90_000, 100]


class Ramps:
    """Utterances whose samples say where they are from."""

    transcripts = ("ONE", "ONE TWO", "A B C D", "THE QUICK BROWN FOX", "ONE")
    samples = np.array(LENGTHS)

    def hear(self, number: int, choose) -> tuple[np.ndarray, Crop]:
        crop = choose(LENGTHS[number])
        return np.arange(crop.start, crop.start + crop.length, dtype=np.float32), crop


def build(kind: type[SpeechSamples] = SpeechSamples, *, is_drawn: bool = True, **data: object) -> SpeechSamples:
    return kind(Ramps(), ByteTokens(64), Data(**data), 400, is_drawn=is_drawn)  # type: ignore[arg-type]


IDS = list(range(5))


def test_rows_are_normalised_and_padded_with_silence() -> None:
    batch = build().fetch(IDS, Draw(0, 0))
    assert batch["samples"].tolist()[:2] == [1_600, 8_000]
    assert batch["samples"][4] == 400, "filled up to one frame"
    assert all(16_000 <= count <= 48_000 for count in batch["samples"][2:4])
    assert 30_400 < batch["samples"].max() < 32_000
    assert batch["audio"].shape == (5, 32_000), "rounded up: few lengths"
    for row, count in zip(batch["audio"], [*batch["samples"][:4].tolist(), 100], strict=True):
        assert row[:count].mean().abs() < 1e-3
        assert row[:count].std() == pytest.approx(1, abs=0.01)
        assert not row[count:].any()


def test_texts_are_bytes_and_their_keys_tell_them_apart() -> None:
    batch = build(is_drawn=False, crop="whole").fetch(IDS, Draw(0, 0))
    assert batch["tokens"][0].tolist()[:5] == [256, *b"ONE", 257]
    assert batch["num_tokens"].tolist() == [4, 8, 8, 20, 4]
    keys = batch["text_keys"].tolist()
    assert keys[0] == keys[4]
    assert len(set(keys)) == 4


def test_a_sample_does_not_depend_on_its_neighbours() -> None:
    samples = build()
    together, alone = samples.fetch(IDS, Draw(5, 1)), samples.fetch([3], Draw(5, 1))
    count = int(alone["samples"][0])
    assert together["samples"][3] == count
    assert torch.equal(together["audio"][3, :count], alone["audio"][0, :count])
    assert torch.equal(together["text_keys"][3:4], alone["text_keys"])
    assert samples.fetch([3], Draw(5, 2))["samples"][0] != count, "another epoch, another crop"


def test_fixed_is_really_fixed() -> None:
    samples = build(crop="fixed", fixed_seconds=1.5)
    batch = samples.fetch(IDS, Draw(0, 0))
    assert batch["audio"].shape == (5, 24_000)
    assert batch["samples"].tolist() == [1_600, 8_000, 24_000, 24_000, 400]
    assert samples.fetch([0], Draw(0, 0))["audio"].shape == (1, 24_000)
    assert samples.longest == 24_000


def test_an_evaluation_hears_the_middle_and_always_the_same() -> None:
    samples = build(is_drawn=False)
    first, later = (samples.fetch(IDS, Draw(seed, seed)) for seed in (0, 9))
    assert all(torch.equal(first[name], later[name]) for name in first)
    assert first["samples"].tolist() == [1_600, 8_000, 40_000, 48_000, 400]


@pytest.mark.parametrize("crop", ["random", "whole"])
def test_lengths_are_told_beforehand(crop: str) -> None:
    samples = build(MeasuredSamples, crop=crop)
    assert isinstance(samples, Measured)
    assert isinstance(samples, Weighed)
    assert not isinstance(build(), Measured)
    told = samples.lengths(IDS, Draw(3, 4))
    assert np.maximum(told, 400).tolist() == samples.fetch(IDS, Draw(3, 4))["samples"].tolist()


def test_seconds_are_those_of_the_mean_crop() -> None:
    samples = build()
    assert samples.mean_seconds([3]) == pytest.approx((1 + 3) / 2)
    assert samples.mean_seconds([0, 2]) == pytest.approx(0.1 + (1 + 2.5) / 2)
    drawn = [int(samples.fetch([3], Draw(0, epoch))["samples"][0]) for epoch in range(300)]
    assert np.mean(drawn) / 16_000 == pytest.approx(2, rel=0.05)
    assert build(crop="whole").mean_seconds([3]) == 90_000 / 16_000
