"""Padding does not change an embedding, and the temperature keeps below its cap."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from paceline.recipes.csa.contrast import HIGHEST, contrast
from tests.recipes.csa.aligners import build_aligner, pad_batch

LENGTHS = (672, 1_700, 16_000, 9_999, 24_321)
"""the first is one frame: the small encoder's receptive field"""


def pairs() -> tuple[list[np.ndarray], list[list[int]]]:
    random = np.random.default_rng(0)
    audios = [random.standard_normal(length).astype(np.float32) for length in LENGTHS]
    texts = [[256, *random.integers(0, 256, 3 + 5 * number)] for number in range(len(LENGTHS))]
    return audios, texts


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("feature_norm", ["group", "layer"])
def test_a_pair_alone_and_among_longer_ones_is_the_same(feature_norm: str, kernel: str, pooling: str) -> None:
    model = build_aligner(feature_norm, kernel, pooling).eval()
    audios, texts = pairs()
    with torch.no_grad():
        together, _ = model(pad_batch(audios, texts))
        for number, (audio, text) in enumerate(zip(audios, texts, strict=True)):
            alone, _ = model(pad_batch([audio], [text]))
            torch.testing.assert_close(together[number], alone[0], rtol=0, atol=1e-5)
    # Different pairs are different: nothing has swallowed what was said.
    assert torch.pdist(together[:, 0]).min() > 1e-3


def test_what_lies_in_the_padding_is_not_heard() -> None:
    model = build_aligner().eval()
    batch = pad_batch(*pairs())
    with torch.no_grad():
        before, _ = model(batch)
        for name, lengths in (("audio", batch["samples"]), ("tokens", batch["num_tokens"])):
            is_padding = torch.arange(batch[name].shape[1]) >= lengths[:, None]
            batch[name][is_padding] = 7
        after, _ = model(batch)
    torch.testing.assert_close(before, after, rtol=0, atol=1e-5)


def test_it_is_wav2vec2_where_nothing_is_padded() -> None:
    """Our forward against that of `transformers`, which is right for whole rows."""
    speech = build_aligner().speech.eval()
    audio = torch.randn(2, 8000, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours, mask = speech(audio, torch.tensor([8000, 8000]))
        from transformers import Wav2Vec2Model

        theirs = Wav2Vec2Model(speech.config).eval()
        missing, unexpected = theirs.load_state_dict(speech.wav2vec2.state_dict(), strict=False)
        assert (missing, unexpected) == (["masked_spec_embed"], [])
        expected = theirs(audio).last_hidden_state
        assert mask.sum(1).tolist() == [expected.shape[1]] * 2
        torch.testing.assert_close(ours[:, : expected.shape[1]], expected, rtol=0, atol=1e-5)


def test_it_is_bert_where_texts_are_padded() -> None:
    text = build_aligner(pooling="cls").text.eval()
    batch = pad_batch(*pairs())
    with torch.no_grad():
        is_there = torch.arange(batch["tokens"].shape[1]) < batch["num_tokens"][:, None]
        theirs = text.bert(input_ids=batch["tokens"], attention_mask=is_there.long()).last_hidden_state[:, 0]
        torch.testing.assert_close(text(batch["tokens"], batch["num_tokens"]), theirs, rtol=0, atol=1e-5)


def test_every_parameter_has_a_gradient() -> None:
    model = build_aligner()
    contrast(*model(pad_batch(*pairs())))[0].backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_a_frozen_text_encoder_has_none_and_does_not_drop_out() -> None:
    model = build_aligner(is_frozen=True).train()
    batch = pad_batch(*pairs())
    contrast(*model(batch))[0].backward()
    trained = {name for name, p in model.named_parameters() if p.grad is not None}
    assert trained == {name for name, p in model.named_parameters() if p.requires_grad}
    assert not any(name.startswith("text.") for name in trained)
    assert "text_projection.weight" in trained
    assert not model.text.bert.training
    assert model.speech.training


def test_the_scale_is_capped_and_comes_back() -> None:
    model = build_aligner()
    with torch.no_grad():
        model.log_scale.fill_(HIGHEST + 1)
    _, shared = model(pad_batch(*pairs()))
    assert shared.item() == pytest.approx(math.log(100))
    for gradient, expected in ((2.0, 2.0), (-2.0, 0.0)):
        model.log_scale.grad = None
        _, shared = model(pad_batch(*pairs()))
        (shared * gradient).sum().backward()
        assert model.log_scale.grad.item() == expected, "down is free, up is not"
    assert model.temperature() == pytest.approx(0.01)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_in_bf16_it_says_nearly_the_same(kernel: str) -> None:
    model = build_aligner(kernel=kernel).eval()
    batch = pad_batch(*pairs())
    with torch.no_grad():
        exact, _ = model(batch)
        with torch.autocast("cpu", torch.bfloat16):
            rounded, _ = model(batch)
    assert rounded.dtype == torch.float32
    assert (exact * rounded).sum(-1).min() > 0.99
