from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from paceline.recipes.csa import audio, flac_library
from paceline.recipes.csa.flac_library import decode_flac, load_library
from tests.recipes.csa.tones import tone

needs_library = pytest.mark.skipif(load_library() is None, reason="this system has no libFLAC")


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-32768, 32768, size).astype(np.int16)


def encoded(samples: np.ndarray, rate: int = 16000, subtype: str = "PCM_16", form: str = "FLAC") -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format=form, subtype=subtype)
    return stream.getvalue()


@needs_library
@pytest.mark.parametrize("size", [1, 15, 16, 4095, 4096, 4097, 30000])
def test_it_decodes_to_every_number(size: int) -> None:
    for samples in (noise(size), np.zeros(size, np.int16), (tone(2) * 32767).astype(np.int16)[:size]):
        decoded = decode_flac(encoded(samples), 16000)
        assert decoded is not None
        assert np.array_equal(decoded, samples)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"fLaC",
        encoded(noise(9000), form="WAV"),
        encoded(noise(9000), rate=8000),
        encoded(noise(9000), subtype="PCM_24"),
        encoded(noise(9000).reshape(-1, 2)),
    ],
)
def test_what_is_something_else_is_left_to_others(content: bytes) -> None:
    assert decode_flac(content, 16000) is None


@needs_library
def test_what_is_damaged_anywhere_is_left_to_others() -> None:
    samples = (tone(1.0) * 32767).astype(np.int16) + noise(16000) // 256
    content = encoded(samples)
    for end in range(0, len(content), 499):
        assert decode_flac(content[:end], 16000) is None
    draw = np.random.default_rng(1)
    for _ in range(200):
        flipped = bytearray(content)
        flipped[draw.integers(len(content))] ^= 1 << int(draw.integers(8))
        decoded = decode_flac(bytes(flipped), 16000)
        # A byte of the head that says nothing about the samples may be another one.
        assert decoded is None or np.array_equal(decoded, samples)
    for declared in (15999, 16001, 2**36 - 1):
        said = int.from_bytes(content[18:26]) >> 36 << 36 | declared
        assert decode_flac(content[:18] + said.to_bytes(8) + content[26:], 16000) is None


def test_without_it_everything_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded(tone(silence=0.4))
    made = audio.make_utterance(content, 16000, 60.0)
    monkeypatch.setattr(flac_library, "load_library", lambda: None)
    assert decode_flac(content, 16000) is None
    assert audio.make_utterance(content, 16000, 60.0) == made


@needs_library
def test_a_head_that_asks_for_more_than_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left to soundfile, which says what is wrong with the file."""

    def refuse(*_: object) -> None:
        raise MemoryError

    content = encoded(noise(100))
    monkeypatch.setattr(flac_library.np, "empty", refuse)
    assert decode_flac(content, 16000) is None
