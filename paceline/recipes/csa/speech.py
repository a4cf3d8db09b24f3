"""The speech encoder: wav2vec2 of `transformers`, computed so that what is beside a row, or after its end, does not change it.

    encoder = build_speech("small", dropout=None, kernel="sdpa")
    frames_BTW, mask_BT = encoder(audio_BS, samples_B)

Some things of the original are done otherwise. Its first layer normalises over time, padding included: here over the frames that are
there (features.py). LayerDrop and SpecAugment, which draw from generators that all share, are left out. What is masked is multiplied with zero, without
asking the device where.

Shapes: B rows, S samples, C channels, T frames, W width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from paceline.recipes.csa.config import BUILT
from paceline.recipes.csa.features import FrameLayer, SampleLayer
from paceline.recipes.csa.pooling import attention_mask, mask_of
from paceline.recipes.csa.positions import PositionLayer
from paceline.recipes.csa.stored import load_stored, read_config

_SMALL = {
    "conv_dim": (16, 32, 64, 64),
    "conv_kernel": (16, 8, 4, 4),
    "conv_stride": (8, 5, 4, 2),
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
_DROPOUTS = ("activation_dropout", "attention_dropout", "feat_proj_dropout", "hidden_dropout")


def speech_config(name: str, dropout: float | None, feature_norm: str = "group") -> Any:
    """The configuration of an encoder, without its weights; `feature_norm` is that of a small one."""
    from transformers import Wav2Vec2Config

    if name == "small":
        config = Wav2Vec2Config(**_SMALL, feat_extract_norm=feature_norm)
        dropout = 0.0 if dropout is None else dropout
    else:
        config = Wav2Vec2Config() if name in BUILT else read_config(name, "speech", ("wav2vec2",))
    if dropout is not None:
        for key in _DROPOUTS:
            setattr(config, key, dropout)
    config.layerdrop, config.apply_spec_augment = 0.0, False
    return config


def build_speech(name: str, dropout: float | None, kernel: str, feature_norm: str = "group") -> SpeechEncoder:
    """With random weights from torch's generator, or those that were stored."""
    from transformers import Wav2Vec2Model

    config = speech_config(name, dropout, feature_norm)
    config._attn_implementation = kernel
    if name in BUILT:
        return SpeechEncoder(Wav2Vec2Model(config), kernel)
    options = {"config": config, "attn_implementation": kernel, "dtype": torch.float32}
    return SpeechEncoder(load_stored(Wav2Vec2Model.from_pretrained, name, "speech", **options), kernel)


def count_frames(config: Any, samples: Any) -> Any:
    """Frames that so many samples give: a number, or a tensor of them."""
    for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
        samples = (samples - kernel) // stride + 1
    return samples


def receptive_field(config: Any) -> int:
    """The samples that one frame is made from: no row may be shorter."""
    samples = 1
    for kernel, stride in reversed(list(zip(config.conv_kernel, config.conv_stride, strict=True))):
        samples = (samples - 1) * stride + kernel
    return samples


class SpeechEncoder(nn.Module):
    """Frames from samples."""

    def __init__(self, wav2vec2: Any, kernel: str) -> None:
        super().__init__()
        self.wav2vec2 = wav2vec2
        self.config = wav2vec2.config
        self._kernel = kernel
        # Nothing masks frames here, and a parameter without gradient would be waited for.
        if hasattr(wav2vec2, "masked_spec_embed"):
            del wav2vec2.masked_spec_embed
        layers = wav2vec2.feature_extractor.conv_layers
        has_group_norm = self.config.feat_extract_norm == "group"
        for number, layer in enumerate(layers):
            layers[number] = SampleLayer(layer) if has_group_norm and number == 0 else FrameLayer(layer)
        wav2vec2.encoder.pos_conv_embed = PositionLayer(wav2vec2.encoder.pos_conv_embed)
        self._samples_per_frame = math.prod(self.config.conv_stride)

    @property
    def width(self) -> int:
        return int(self.config.hidden_size)

    def forward(self, audio_BS: Tensor, samples_B: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, W) frames, and (B, T) which of them are there."""
        wav2vec2, config = self.wav2vec2, self.config
        audio_BS = pad(audio_BS, (0, -audio_BS.shape[1] % self._samples_per_frame))
        first, *others = wav2vec2.feature_extractor.conv_layers
        frames_BTC = first(audio_BS, samples_B) if isinstance(first, SampleLayer) else first(audio_BS[..., None])
        for layer in others:
            frames_BTC = layer(frames_BTC)
        mask_BT = mask_of(count_frames(config, samples_B), frames_BTC.shape[1])
        hidden_BTW = wav2vec2.feature_projection(frames_BTC)[0] * mask_BT[..., None]
        encoder = wav2vec2.encoder
        hidden_BTW = hidden_BTW + encoder.pos_conv_embed(hidden_BTW)
        # The stable variant normalises before each layer and at the end, the other after each layer and at the beginning.
        is_stable = config.do_stable_layer_norm
        hidden_BTW = encoder.dropout(hidden_BTW if is_stable else encoder.layer_norm(hidden_BTW))
        mask = attention_mask(mask_BT, self._kernel, hidden_BTW.dtype)
        for layer in encoder.layers:
            hidden_BTW = layer(hidden_BTW, attention_mask=mask)
        return (encoder.layer_norm(hidden_BTW) if is_stable else hidden_BTW), mask_BT
