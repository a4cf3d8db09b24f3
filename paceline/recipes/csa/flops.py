"""Floating-point operations of both encoders' products, per second of speech: what MFU divides by.

Forward once and backward twice as much; of a frozen text encoder, forward alone. Padding does not count as work done, nor does what is
computed again. The loss is left out: a product of the step's embeddings, thousands of times less.
"""

from __future__ import annotations

from typing import Any

from paceline.recipes.csa.data_config import RATE
from paceline.recipes.csa.speech import count_frames


def count_flops(speech: Any, text: Any, seconds: float, num_tokens: float, is_text_frozen: bool) -> float:
    """Of forward and backward, per second of speech, for pairs of so many seconds and so many tokens on average."""
    pair = 3 * speech_flops(speech, int(seconds * RATE)) + (1 if is_text_frozen else 3) * layer_flops(text, num_tokens)
    return pair / seconds


def speech_flops(config: Any, samples: int) -> float:
    """Of one forward."""
    total, channels, length = 0.0, 1, samples
    for width, kernel, stride in zip(config.conv_dim, config.conv_kernel, config.conv_stride, strict=True):
        length = (length - kernel) // stride + 1
        total += 2 * length * kernel * channels * width
        channels = width
    frames, width = int(count_frames(config, samples)), config.hidden_size
    positions = width * config.num_conv_pos_embeddings * (width // config.num_conv_pos_embedding_groups)
    return total + float(2 * frames * (channels * width + positions)) + layer_flops(config, frames)


def layer_flops(config: Any, length: float) -> float:
    """Of all transformer layers over a row of so many places, forward."""
    width = config.hidden_size
    weights = 4 * width**2 + 2 * width * config.intermediate_size
    return float(config.num_hidden_layers * length * (2 * weights + 4 * length * width))
