"""One utterance's audio: decoded, brought to the rate as mono, trimmed, encoded as FLAC, and decoded again to be sure. No torch.

utterance = make_utterance(Path("84-121123-0000.wav").read_bytes(), rate=16000, top_db=60.0)
utterance.flac, utterance.samples, utterance.cut, utterance.checksum

Needs `paceline[speech]`. Samples are whole 16-bit numbers from here on: what is in a file is exactly what was meant.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.recipes.csa.audio_packages import import_audio
from paceline.recipes.csa.flac_library import decode_flac
from paceline.recipes.csa.wav_header import check_wav_header

Samples = NDArray[np.int16]

FRAME, HOP = 2048, 512
"""samples; librosa.effects.trim has the same"""
_FULL_SCALE = 32768
_LEAST_POWER = FRAME * (1e-5 * _FULL_SCALE) ** 2
"""of a frame; librosa takes what is quieter for as loud as this, so that a very quiet recording is not cut"""
_LEAST_RATE, _MOST_RATE = 1_000, 1_000_000
"""Hz of a recording: a header with less or more is wrong, and resampling by it would fill the memory"""
_MOST_PEAK = 2.0
"""Of numbers that should lie within 1: a little more is a loud recording, much more another scale."""


class Unusable(Exception):
    """Why no utterance can be made of a file, in words for people."""


@dataclass(frozen=True)
class Utterance:
    """A file's content and what is in it."""

    flac: bytes
    samples: int
    cut: int
    """samples that trimming took away"""
    checksum: str
    """of the samples"""


def make_utterance(content: bytes, rate: int, top_db: float | None) -> Utterance:
    """From a file of any rate and number of channels; Unusable where it is damaged, empty or silent."""
    samples, is_exact = _decode(content, rate)
    if not len(samples):
        raise Unusable("empty: there are no samples in it")
    if np.max(samples) <= 1 and np.min(samples) >= -1:
        raise Unusable("silent: nothing in it is louder than the last bit of a 16-bit number")
    start, end = (0, len(samples)) if top_db is None else find_sound(samples, top_db)
    cut = len(samples) - (end - start)
    kept = samples[start:end]
    # What is already as it should be is kept byte for byte: it has just been decoded from end to end, which is what counts.
    flac = content if is_exact and not cut else _encode(kept, rate)
    return Utterance(flac, len(kept), cut, checksum_of(kept))


def checksum_of(samples: Samples) -> str:
    """The same on every machine, and however the samples are compressed."""
    return digest_of(np.ascontiguousarray(samples, dtype="<i2").data)


def digest_of(content: bytes | memoryview) -> str:
    """128 bits of SHA-256, which processors compute faster than anything shorter."""
    return hashlib.sha256(content).hexdigest()[:32]


def read_samples(content: bytes, rate: int) -> Samples:
    """Of a file that was prepared: mono, 16 bits, of that rate; Unusable where it is anything else."""
    samples, is_exact = _decode(content, rate)
    if not is_exact:
        raise Unusable(f"it is no mono FLAC of 16 bits and {rate} Hz")
    return samples


def find_sound(samples: Samples, top_db: float) -> tuple[int, int]:
    """From where to where it is louder than `top_db` below the loudest frame, in steps of a hop.

    Frames are centred on multiples of the hop and reach beyond both ends, where there is silence, as in librosa.effects.trim. A frame is
    four hops, so its power is the sum of four; in float64 these sums of squares are exact, and the same on every machine.
    """
    share = 10 ** (-top_db / 10)
    num_hops = len(samples) // HOP + 1
    around = FRAME // 2
    # Mostly both ends are louder than any loudest frame could make too quiet: then nothing between them has to be looked at.
    loudest = max(FRAME * max(int(np.max(samples)), -int(np.min(samples))) ** 2, _LEAST_POWER)
    ends = samples[:around], samples[max(0, (num_hops - 1) * HOP - around) :]
    if all(float(np.sum(np.square(end, dtype=np.float64))) > loudest * share for end in ends):
        return 0, len(samples)
    padded = np.zeros((num_hops + FRAME // HOP - 1) * HOP)
    padded[around : around + len(samples)] = samples
    hops = padded.reshape(-1, HOP)
    power = np.convolve(np.einsum("ij,ij->i", hops, hops), np.ones(FRAME // HOP), "valid")
    power = np.maximum(power, _LEAST_POWER)
    loud = np.flatnonzero(power > power.max() * share)
    return int(loud[0]) * HOP, min(len(samples), (int(loud[-1]) + 1) * HOP)


def _decode(content: bytes, rate: int) -> tuple[Samples, bool]:
    """As mono of this rate; and whether the file is FLAC and holds exactly these numbers."""
    samples = decode_flac(content, rate)
    if samples is not None:
        return samples, True
    soundfile, _ = import_audio()
    if not content:
        raise Unusable("empty: the file has no bytes")
    fault = check_wav_header(content)
    if fault:
        raise Unusable(f"damaged: {fault}")
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            is_exact = (file.format, file.subtype, file.channels, file.samplerate) == ("FLAC", "PCM_16", 1, rate)
            is_whole = file.subtype == "PCM_16" and file.channels == 1 and file.samplerate == rate
            declared, source_rate = file.frames, file.samplerate
            if not _LEAST_RATE <= source_rate <= _MOST_RATE:
                raise Unusable(f"damaged: its header declares {source_rate} samples per second")
            decoded = file.read(dtype="int16" if is_whole else "float32", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError, MemoryError) as error:
        raise Unusable(f"damaged: {getattr(error, 'error_string', None) or error}") from None
    if len(decoded) != declared:
        raise Unusable(f"damaged: its header declares {declared} samples, and {len(decoded)} can be decoded")
    if is_whole:
        return decoded[:, 0], is_exact
    return _convert(decoded, source_rate, rate), False


def _convert(decoded: NDArray[np.float32], source_rate: int, rate: int) -> Samples:
    _, soxr = import_audio()
    peak = float(np.max(np.abs(decoded), initial=0.0))
    if not np.isfinite(peak):
        raise Unusable("damaged: it holds numbers that are not finite")
    if peak > _MOST_PEAK:
        raise Unusable(f"its samples reach {peak:g}, where 1 is full scale: they are on another scale")
    mono = decoded[:, 0] if decoded.shape[1] == 1 else decoded.mean(axis=1)
    if source_rate != rate:
        mono = soxr.resample(mono, source_rate, rate, quality="HQ")
    return np.clip(np.rint(mono * _FULL_SCALE), -_FULL_SCALE, _FULL_SCALE - 1).astype(np.int16)


def _encode(samples: Samples, rate: int) -> bytes:
    """As FLAC; it is decoded again, and every number must come back."""
    soundfile, _ = import_audio()
    stream = io.BytesIO()
    # Least compression: 2 % more bytes than the usual level, and a tenth less time to write them and in every epoch to read them (2026-11-16).
    soundfile.write(stream, samples, rate, format="FLAC", subtype="PCM_16", compression_level=0.0)
    content = stream.getvalue()
    if not np.array_equal(read_samples(content, rate), samples):
        raise Unusable(
            "the encoded file does not decode to what was encoded: soundfile, or this machine's memory, is broken"
        )
    return content
