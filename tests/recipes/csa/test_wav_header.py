from __future__ import annotations

import io
import struct

import pytest
import soundfile

from paceline.recipes.csa.wav_header import check_wav_header
from tests.recipes.csa.tones import tone


def wav() -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, tone(), 16000, format="WAV", subtype="PCM_16")
    return stream.getvalue()


def declaring(num_bytes: int) -> bytes:
    content = bytearray(wav())
    at = content.index(b"data") + 4
    content[at : at + 4] = struct.pack("<I", num_bytes)
    return bytes(content)


@pytest.mark.parametrize("tail", [b"", b"\0", b"LIST" + struct.pack("<I", 4) + b"INFO"])
def test_an_honest_one_has_no_fault(tail: bytes) -> None:
    assert check_wav_header(wav() + tail) is None
    assert check_wav_header(b"fLaC" + wav()) is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (declaring(16002), "declares 16002 bytes of samples, and 16000 are there"),
        (declaring(0xFFFFFFFF), "declares 4294967295"),
        (declaring(8000), "declares fewer samples than there are: 8000 bytes are left over"),
        (declaring(15996), "4 bytes are left over"),
        (declaring(0), "16000 bytes are left over"),
        (wav()[:30], "cut off"),
        (wav()[:40], "cut off"),
        (wav()[:36], "no samples"),
        (wav() + b"\x01\x02\x03\x04" * 50, "200 bytes are left over"),
    ],
)
def test_a_lie_is_said(content: bytes, says: str) -> None:
    fault = check_wav_header(content)
    assert fault is not None
    assert says in fault
