from __future__ import annotations

import io
import sys

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from paceline.errors import UsageError
from paceline.recipes.csa.audio import FRAME, HOP, Unusable, checksum_of, find_sound, make_utterance, read_samples
from paceline.recipes.csa.audio_packages import import_audio
from tests.recipes.csa.tones import tone


def encoded(samples: NDArray[np.generic], rate: int = 16000, form: str = "FLAC", subtype: str = "PCM_16") -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format=form, subtype=subtype)
    return stream.getvalue()


def test_what_is_as_it_should_be_stays_byte_for_byte() -> None:
    content = encoded(tone())
    made = make_utterance(content, 16000, 60.0)
    assert (made.flac, made.samples, made.cut) == (content, 8000, 0)
    assert made.checksum == checksum_of(read_samples(content, 16000))


def test_silence_at_the_ends_is_cut_and_the_rest_is_bit_exact() -> None:
    whole = (tone(silence=0.5) * 32767).astype(np.int16)
    made = make_utterance(encoded(whole), 16000, 60.0)
    kept = read_samples(made.flac, 16000)
    assert made.cut == len(whole) - len(kept) > 12000
    start = next(at for at in range(0, len(whole), HOP) if np.array_equal(whole[at : at + len(kept)], kept))
    assert 8000 - FRAME <= start <= 8000
    assert make_utterance(encoded(whole), 16000, None).cut == 0


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_any_rate_and_any_number_of_channels_becomes_mono_of_ours(rate: int, subtype: str) -> None:
    left = tone(1.0, rate, hertz=500)
    stereo = np.stack([left, np.zeros_like(left)], axis=1)
    made = make_utterance(encoded(stereo, rate, "WAV", subtype), 16000, None)
    kept = read_samples(made.flac, 16000).astype(float) / 32768
    assert len(kept) == made.samples == 16000
    inside = slice(1600, 14400)  # the ends of a filter are its own
    assert np.abs(kept - tone(1.0, hertz=500) / 2)[inside].max() < 1e-3


def test_the_container_does_not_change_the_samples() -> None:
    samples = (tone() * 32767).astype(np.int16)
    made = [make_utterance(encoded(samples, form=form), 16000, 40.0) for form in ("WAV", "FLAC")]
    assert made[0].checksum == made[1].checksum
    assert np.array_equal(read_samples(made[0].flac, 16000), read_samples(made[1].flac, 16000))


def trimmed_by_frames(samples: NDArray[np.int16], top_db: float) -> tuple[int, int]:
    """The definition, frame by frame: power in dB against the loudest, no frame below -100 dB of full scale."""
    padded = np.concatenate([np.zeros(FRAME // 2), samples / 32768, np.zeros(FRAME // 2)])
    starts = range(0, len(padded) - FRAME + 1, HOP)
    db = [10 * np.log10(max(1e-10, np.mean(padded[at : at + FRAME] ** 2))) for at in starts]
    loud = [index for index, one in enumerate(db) if one - max(db) > -top_db]
    return loud[0] * HOP, min(len(samples), (loud[-1] + 1) * HOP)


@pytest.mark.parametrize("size", [1, 511, 512, 513, 1600, 2047, 2048, 4096, 30000, 51200])
@pytest.mark.parametrize("top_db", [10.0, 37.0, 60.0])
def test_trimming_is_what_its_definition_says(size: int, top_db: float) -> None:
    draw = np.random.default_rng(size)
    for loudness in (3.0, 3000.0):
        envelope = 10.0 ** (-5 * np.abs(np.linspace(-1, 1, size) - draw.uniform(-1, 1)))
        samples = (loudness * envelope * draw.standard_normal(size)).astype(np.int16)
        samples[size // 2] = 40
        assert find_sound(samples, top_db) == trimmed_by_frames(samples, top_db)


def damaged(content: bytes) -> dict[str, bytes]:
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0xFF
    return {"truncated": content[: len(content) // 2], "short by a byte": content[:-1], "flipped": bytes(flipped)}


@pytest.mark.parametrize("kind", ["truncated", "short by a byte", "flipped"])
def test_a_damaged_file_is_unusable(kind: str) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 16000)
    with pytest.raises(Unusable, match="damaged"):
        make_utterance(damaged(encoded(noise))[kind], 16000, None)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty: the file has no bytes"),
        (b"no audio at all", "damaged"),
        (encoded(np.zeros(0), form="WAV"), "no samples"),
        (encoded(np.zeros(16000)), "silent"),
        (encoded(np.tile([0, 1, -1], 4000).astype(np.int16)), "silent"),
        (encoded(tone() * 9000, form="WAV", subtype="FLOAT"), "another scale"),
        (encoded(np.full(9000, np.nan), form="WAV", subtype="FLOAT"), "not finite"),
        (encoded(tone(), form="WAV")[:-100], "declares 16000 bytes of samples, and 15900 are there"),
    ],
)
def test_what_holds_no_speech_is_unusable(content: bytes, says: str) -> None:
    with pytest.raises(Unusable, match=says):
        make_utterance(content, 16000, 60.0)


def test_a_tenth_of_a_second_and_a_click_are_kept() -> None:
    assert make_utterance(encoded(tone(0.1)), 16000, 60.0).samples == 1600
    click = np.zeros(16000)
    click[9000] = 0.9
    assert 0 < make_utterance(encoded(click), 16000, 60.0).samples <= FRAME + HOP


def test_loud_float_samples_are_clipped_not_wrapped() -> None:
    made = make_utterance(encoded(tone() * 2.5, form="WAV", subtype="FLOAT"), 16000, None)
    kept = read_samples(made.flac, 16000)
    assert (kept.max(), kept.min()) == (32767, -32768)
    assert np.all(np.abs(np.diff(kept.astype(int))) < 16000)


def test_an_encoder_that_lies_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    write = soundfile.write
    monkeypatch.setattr(soundfile, "write", lambda file, data, *rest, **more: write(file, data[::-1], *rest, **more))
    with pytest.raises(Unusable, match="does not decode to what was encoded"):
        make_utterance(encoded(tone(silence=0.3)[::-1] + 0.001), 8000, None)


def test_an_output_of_another_kind_is_none_of_ours() -> None:
    for content in (encoded(tone(), 8000), encoded(tone(), form="WAV"), encoded(np.stack([tone(), tone()], 1))):
        with pytest.raises(Unusable, match="no mono FLAC"):
            read_samples(content, 16000)


@pytest.mark.parametrize("name", ["soundfile", "soxr"])
def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=name) as caught:
        import_audio()
    assert "paceline[speech]" in caught.value.problems[0].do


@pytest.mark.parametrize("rate", [1, 999, 2_000_000])
def test_a_rate_that_no_recording_has_is_a_damaged_header(rate: int) -> None:
    with pytest.raises(Unusable, match=f"declares {rate} samples per second"):
        make_utterance(encoded(tone(0.1), rate, "WAV"), 16000, None)
