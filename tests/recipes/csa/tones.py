"""Small LibriSpeech trees of tones, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray


def tone(seconds: float = 0.5, rate: int = 16000, *, hertz: float = 440.0, silence: float = 0.0) -> NDArray[np.float64]:
    """A tone, with silence before and after it."""
    time = np.arange(round(seconds * rate)) / rate
    quiet = np.zeros(round(silence * rate))
    return np.concatenate([quiet, 0.5 * np.sin(2 * np.pi * hertz * time), quiet])


def write_tone(path: Path, seconds: float = 0.5, rate: int = 16000, **settings: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, tone(seconds, rate, **settings), rate, subtype="PCM_16")


def build_tree(root: Path, *, chapters: int = 2, utterances: int = 4, suffix: str = ".flac") -> Path:
    """dev/1/10/1-10-0000.flac and so on: every tone another one, with silence around it, each with its transcript."""
    for chapter in range(chapters):
        folder = root / "dev" / f"{chapter + 1}" / f"{chapter + 1}0"
        lines = []
        for number in range(utterances):
            name = f"{chapter + 1}-{chapter + 1}0-{number:04}"
            write_tone(folder / f"{name}{suffix}", 0.3 + 0.1 * number, hertz=300 + 40 * number, silence=0.2)
            lines.append(f"{name} TONE NUMBER {number}\n")
        (folder / f"{chapter + 1}-{chapter + 1}0.trans.txt").write_text("".join(lines))
    return root
