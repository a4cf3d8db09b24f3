from __future__ import annotations

from pathlib import Path

from paceline.recipes.csa.transcripts import normalise, read_transcripts

PATH = Path("1-2.trans.txt")


def read(content: bytes) -> dict[str, str]:
    return {name: one.fault or one.text for name, one in read_transcripts({PATH: content}).items()}


def test_a_line_is_an_id_and_words() -> None:
    assert read(b"1-2-0000 GO DO YOU HEAR\n\n1-2-0001 YES") == {"1-2-0000": "GO DO YOU HEAR", "1-2-0001": "YES"}
    assert read_transcripts({PATH: b"\n1-2-0000 A\n"})["1-2-0000"].place == "1-2.trans.txt:2"


def test_blanks_of_any_kind_become_single_ones() -> None:
    content = "\ufeff1-2-0000\tA\t B\r\n1-2-0001 C\u2028D\x0bE\x00F\u00a0G\n".encode()
    assert read(content) == {"1-2-0000": "A B", "1-2-0001": "C D E F G"}


def test_letters_beyond_ascii_are_kept_and_written_in_one_way() -> None:
    assert normalise("re\u0301sume\u0301 ß 東京") == "résumé ß 東京"


def test_what_cannot_be_used_says_why() -> None:
    found = read(b"1-2-0000 \xff\xfe\n1-2-0001\n1-2-0002 \t \n1-2-0003 A\n")
    assert found == {
        "1-2-0000": "its transcript is not UTF-8: 1-2.trans.txt:1",
        "1-2-0001": "its transcript is empty: 1-2.trans.txt:2",
        "1-2-0002": "its transcript is empty: 1-2.trans.txt:3",
        "1-2-0003": "A",
    }


def test_two_texts_for_one_id_are_a_fault_and_the_same_twice_is_none() -> None:
    assert read(b"1 A\n1 A\n") == {"1": "A"}
    assert read(b"1 A\n1 B\n") == {"1": "two transcripts with different words: 1-2.trans.txt:1, 1-2.trans.txt:2"}
    both = read_transcripts({Path("a"): b"1 A\n", Path("b"): b"1 B\n"})
    assert both["1"].fault == "two transcripts with different words: a:1, b:1"
    assert read(b"1 A\n1 B\n1 A\n")["1"].startswith("two transcripts")
