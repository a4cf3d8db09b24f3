from __future__ import annotations

import pytest

from paceline.reports.lettering import fit, fit_case, plain, width_of

CASE = "10 · bucket_mb=100 num_workers=4 compression=fp16"


@pytest.mark.parametrize("text", [CASE, "x" * 300, "", "漢字" * 40, "WWWWiiii" * 9, "no pairs at all in this one " * 4])
@pytest.mark.parametrize("pixels", [20, 80, 200, 330])
def test_what_is_cut_fits(text: str, pixels: float) -> None:
    for cut in (fit(text, pixels), fit_case(text, pixels)):
        assert width_of(cut) <= pixels
        assert (cut == text) == (width_of(text) <= pixels)


def test_both_ends_stay_and_of_a_case_its_values() -> None:
    assert fit("abcdefghijklmnopqrstuvwxyz" * 3, 100).startswith("abc")
    assert fit("abcdefghijklmnopqrstuvwxyz" * 3, 100).endswith("xyz")
    for pixels in (330, 290, 240, 180):
        cut = fit_case(CASE, pixels)
        assert [word.partition("=")[2] for word in cut.split(" ")[2:]] == ["100", "4", "fp16"]
    assert fit_case(CASE, 500) == CASE


def test_what_is_no_text_is_shown_as_such() -> None:
    assert plain("a\nb\tc") == "a b c"
    assert plain("a\u202eb\x00c\u200b") == "a\ufffdb\ufffdc\ufffd"
    assert plain("naïve 漢 é") == "naïve 漢 é"
