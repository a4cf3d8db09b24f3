"""Text in a drawing: about how wide it is, and cut so that it fits; a drawing cannot wrap a line.

fit("parallel.bucket_mb=25 data.num_workers=0", 120)    -> "parallel.…orkers=0"
"""

from __future__ import annotations

import unicodedata

DIGIT = 6.6
"""the width of a digit, at most, in the page's 11 pixel type"""
_NARROW, _LOWER, _SIGN, _BROAD, _FULL = 4.6, 7.0, 9.4, 10.8, 13.0
"""of other letters, by the widest of the usual fonts"""
_CUT = "…"


def width_of(text: str) -> float:
    """In pixels, rather too many than too few: which font the reader has is not known."""
    return sum(_width(letter) for letter in text)


def fit(text: str, pixels: float) -> str:
    """The whole of it, or its two ends: names of cases differ at either."""
    text = plain(text)
    if width_of(text) <= pixels:
        return text
    room = pixels - width_of(_CUT)
    head, tail = "", ""
    for index in range(len(text)):
        # From the front and the back in turn.
        letter = text[index // 2] if index % 2 == 0 else text[-1 - index // 2]
        room -= _width(letter)
        if room < 0:
            break
        head, tail = (head + letter, tail) if index % 2 == 0 else (head, letter + tail)
    return head + _CUT + tail


def fit_case(text: str, pixels: float) -> str:
    """The name of a case: its keys are cut before its values, which are what tells two cases apart."""
    text = plain(text)
    words = [word.partition("=") for word in text.split(" ")]
    longest = max(len(key) for key, sign, _ in words) if any(sign for _, sign, _ in words) else 0
    for room in (longest, *range(min(longest - 2, 12), 0, -1)):
        cut = [
            (key if not sign or len(key) <= room + 1 else key[:room] + _CUT) + sign + value
            for key, sign, value in words
        ]
        if width_of(" ".join(cut)) <= pixels:
            return " ".join(cut)
    return fit(text, pixels)


def plain(text: str) -> str:
    """On one line, and without the marks that would turn the rest of a line around or are no text at all."""
    return "".join(
        " " if letter.isspace() else letter if unicodedata.category(letter)[0] != "C" else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )


def _width(letter: str) -> float:
    if unicodedata.combining(letter):
        return 0.0
    if unicodedata.east_asian_width(letter) in "WF" or ord(letter) >= 0x2E80:
        return _FULL
    if letter in " iljtfrI.,:;'|!()[]/-":
        return _NARROW
    if letter in "mwMW@%&" or ord(letter) >= 0x250:
        return _BROAD
    return _SIGN if letter in "=+<>~#·…" or letter.isupper() else _LOWER
