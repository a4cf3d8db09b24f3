"""Encoders that others trained: read from a directory, and refused with the reason where they cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast, GPT2Config, Wav2Vec2Config, Wav2Vec2ForPreTraining

from paceline.errors import ConfigError, UsageError
from paceline.recipes.csa.speech import build_speech, receptive_field, speech_config
from paceline.recipes.csa.stored import check_transformers
from paceline.recipes.csa.text import build_text, build_tokenizer, text_config

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
CONV = {"conv_dim": (8, 8), "conv_kernel": (10, 4), "conv_stride": (5, 4), "num_conv_pos_embeddings": 4}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "fox"]


@pytest.fixture
def speech_path(tmp_path: Path) -> Path:
    """As it was published: with the heads of its pretraining."""
    config = Wav2Vec2Config(
        **SIZES, **CONV, num_feat_extract_layers=2, num_conv_pos_embedding_groups=2, codevector_dim=8
    )
    Wav2Vec2ForPreTraining(config).save_pretrained(tmp_path / "speech")
    return tmp_path / "speech"


@pytest.fixture
def text_path(tmp_path: Path) -> Path:
    BertModel(BertConfig(**SIZES, vocab_size=len(WORDS), max_position_embeddings=6)).save_pretrained(tmp_path / "text")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "text")
    return tmp_path / "text"


def test_a_speech_encoder_comes_with_its_weights(speech_path: Path) -> None:
    encoder = build_speech(str(speech_path), None, "sdpa")
    stored = Wav2Vec2ForPreTraining.from_pretrained(speech_path).wav2vec2
    torch.testing.assert_close(encoder.wav2vec2.encoder.layers[0].state_dict(), stored.encoder.layers[0].state_dict())
    assert (encoder.width, receptive_field(encoder.config)) == (16, 25)
    assert encoder.config.layerdrop == 0
    frames, mask = encoder(torch.randn(1, 100), torch.tensor([100]))
    assert (frames.shape[2], mask.tolist()) == (16, [[True] * 4 + [False]])


def test_dropout_is_the_encoders_own_or_what_was_asked_for(speech_path: Path, text_path: Path) -> None:
    assert speech_config(str(speech_path), None).hidden_dropout == 0.1
    assert speech_config(str(speech_path), 0.3).hidden_dropout == 0.3
    assert text_config(str(text_path), 0.3).attention_probs_dropout_prob == 0.3
    assert (speech_config("base", None).hidden_dropout, speech_config("small", None).hidden_dropout) == (0.1, 0)
    assert (text_config("base", None).hidden_dropout_prob, text_config("small", None).hidden_dropout_prob) == (0.1, 0)


def test_a_text_encoder_comes_with_its_tokenizer(text_path: Path) -> None:
    tokenizer = build_tokenizer(str(text_path))
    assert tokenizer.encode(["THE FOX", "the quick dog"]) == [[2, 5, 7, 3], [2, 5, 6, 1, 3]]
    assert len(tokenizer.encode(["the " * 30])[0]) == 6, "as many as it has positions"
    encoder = build_text(str(text_path), None, "sdpa", "mean", is_frozen=True)
    assert encoder(torch.tensor([[2, 5, 7, 3]]), torch.tensor([4])).shape == (1, 16)
    assert encoder.bert.pooler is None


def test_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no model that can be read") as caught:
        build_speech(str(tmp_path), None, "sdpa")
    (problem,) = caught.value.problems
    assert problem.where == f"model.speech={tmp_path}"
    assert "config.json" in problem.do


def test_another_kind_of_model(tmp_path: Path) -> None:
    GPT2Config().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="is a gpt2 model, and this encoder is built from bert or roberta"):
        build_text(str(tmp_path), None, "sdpa", "mean", is_frozen=False)


def test_a_name_without_a_network(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="no model of that name in the cache or on the Hub") as caught:
        build_speech("some-lab/wav2vec2-mine", None, "sdpa")
    (problem,) = caught.value.problems
    assert "hf download some-lab/wav2vec2-mine --local-dir models/wav2vec2-mine" in problem.do
    assert "set model.speech=models/wav2vec2-mine" in problem.do


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    asked = []

    def ask(url: str, timeout: float) -> None:
        asked.append(url)
        raise Exception("no route to it")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", ask)
    with pytest.raises(ConfigError, match="the Hub cannot be reached: no route to it"):
        build_speech("some-lab/wav2vec2-mine", None, "sdpa")
    assert len(asked) == 1


def test_weights_of_another_width(speech_path: Path) -> None:
    config = Wav2Vec2Config.from_pretrained(speech_path)
    config.hidden_size = 32
    config.save_pretrained(speech_path)
    with pytest.raises(ConfigError, match="the weights do not fit their configuration"):
        build_speech(str(speech_path), None, "sdpa")


def test_damaged_weights(speech_path: Path) -> None:
    weights = speech_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="the weights are damaged"):
        build_speech(str(speech_path), None, "sdpa")


def test_a_tokenizer_that_knows_more_than_the_encoder(text_path: Path) -> None:
    BertModel(BertConfig(**SIZES, vocab_size=5)).save_pretrained(text_path)
    with pytest.raises(ConfigError, match="the tokenizer has 8 tokens, and the encoder beside it embeds 5"):
        build_tokenizer(str(text_path))


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError) as caught:
        check_transformers()
    assert caught.value.problems[0].do == "pip install 'paceline[speech]'"
