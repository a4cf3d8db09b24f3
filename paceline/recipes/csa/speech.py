"""The speech encoder: wav2vec2 of `transformers`, computed so that what is beside a row, or after its end, does not change it.

    encoder = build_speech("small", dropout=None, kernel="sdpa")
    frames_BTW, mask_BT = encoder(audio_BS, samples_B)

Three things of the original are done otherwise. Its first layer normalises over time, padding included: here over the frames that are
there. LayerDrop and SpecAugment, which draw from generators that all share, are left out. What is masked is multiplied with zero, without
asking the device where.

Shapes: B rows, S samples, C channels, T frames, W width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from paceline.recipes.csa.config import BUILT
from paceline.recipes.csa.pooling import attention_mask, mask_of
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
        if self.config.feat_extract_norm == "group":
            layers[0] = MaskedNormLayer(layers[0])

    @property
    def width(self) -> int:
        return int(self.config.hidden_size)

    def forward(self, audio_BS: Tensor, samples_B: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, W) frames, and (B, T) which of them are there."""
        wav2vec2, config = self.wav2vec2, self.config
        features = audio_BS[:, None]
        for layer in wav2vec2.feature_extractor.conv_layers:
            features = layer(features, samples_B) if isinstance(layer, MaskedNormLayer) else layer(features)
        mask_BT = mask_of(count_frames(config, samples_B), features.shape[-1])
        hidden_BTW = wav2vec2.feature_projection(features.transpose(1, 2))[0] * mask_BT[..., None]
        encoder = wav2vec2.encoder
        hidden_BTW = hidden_BTW + encoder.pos_conv_embed(hidden_BTW)
        # The stable variant normalises before each layer and at the end, the other after each layer and at the beginning.
        is_stable = config.do_stable_layer_norm
        hidden_BTW = encoder.dropout(hidden_BTW if is_stable else encoder.layer_norm(hidden_BTW))
        mask = attention_mask(mask_BT, self._kernel, hidden_BTW.dtype)
        for layer in encoder.layers:
            hidden_BTW = layer(hidden_BTW, attention_mask=mask)
        return (encoder.layer_norm(hidden_BTW) if is_stable else hidden_BTW), mask_BT


class MaskedNormLayer(nn.Module):
    """wav2vec2's first layer, each channel normalised over the frames that are there; its parameters keep their names."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.conv = original.conv
        self.layer_norm = original.layer_norm
        self.activation = original.activation

    def forward(self, audio_B1S: Tensor, samples_B: Tensor) -> Tensor:
        frames_BCT = self.conv(audio_B1S)
        (kernel,), (stride,) = self.conv.kernel_size, self.conv.stride
        counts_B = (samples_B - kernel) // stride + 1
        activated_BCT: Tensor = self.activation(self._normalise(frames_BCT, counts_B))
        return activated_BCT

    def _normalise(self, frames_BCT: Tensor, counts_B: Tensor) -> Tensor:
        """In fp32, as torch's own does; what comes out is again of the type that went in."""
        mask_B1T = mask_of(counts_B, frames_BCT.shape[-1])[:, None]
        dtype, frames_BCT, counts_B11 = frames_BCT.dtype, frames_BCT.float(), counts_B[:, None, None]
        means_BC1 = (frames_BCT * mask_B1T).sum(-1, keepdim=True) / counts_B11
        centred_BCT = (frames_BCT - means_BC1) * mask_B1T
        variances_BC1 = centred_BCT.square().sum(-1, keepdim=True) / counts_B11
        scales_BC1 = torch.rsqrt(variances_BC1 + self.layer_norm.eps) * self.layer_norm.weight[:, None]
        normalised_BCT: Tensor = centred_BCT * scales_BC1 + self.layer_norm.bias[:, None]
        return normalised_BCT.to(dtype)
