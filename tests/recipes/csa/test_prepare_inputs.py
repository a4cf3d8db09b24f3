from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.errors import UsageError
from paceline.recipes.csa.manifest import Entry, Manifest, write_manifest
from paceline.recipes.csa.prepare_inputs import find_inputs, find_manifests


def tree(root: Path, *files: str, transcripts: str = "") -> Path:
    """Files without content, and the transcripts of the chapter dev/1/2."""
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    (root / "dev/1/2").mkdir(parents=True, exist_ok=True)
    if transcripts:
        (root / "dev/1/2/1-2.trans.txt").write_text(transcripts)
    return root


def faults(root: Path) -> dict[str, str]:
    return {fault.path: fault.reason for fault in find_inputs(root).faults}


def test_an_utterance_has_its_place_and_its_transcript(tmp_path: Path) -> None:
    tree(tmp_path, "dev/1/2/1-2-0001.WAV", "dev/1/2/1-2-0000.flac", transcripts="1-2-0000 A\n1-2-0001 B\n")
    (tmp_path / "SPEAKERS.TXT").touch()
    found = find_inputs(tmp_path)
    assert [(one.id, one.split, one.speaker, one.chapter, one.transcript) for one in found.sources] == [
        ("1-2-0000", "dev", "1", "2", "A"),
        ("1-2-0001", "dev", "1", "2", "B"),
    ]
    assert (found.faults, found.notes) == ([], [])


def test_what_has_no_partner_is_a_fault(tmp_path: Path) -> None:
    tree(tmp_path, "dev/1/2/a.flac", "dev/1/2/b.flac", "dev/1/3/c.flac", transcripts="a A\nx X\nb\n")
    assert faults(tmp_path) == {
        "dev/1/2/1-2.trans.txt:2": "there is no audio for x",
        "dev/1/2/b.flac": "its transcript is empty: 1-2.trans.txt:3",
        "dev/1/3/c.flac": "there is no transcript for it",
    }


def test_of_two_files_with_one_id_neither_is_guessed(tmp_path: Path) -> None:
    tree(tmp_path, "dev/1/2/a.flac", "dev/1/2/a.wav", "test/1/2/b.flac", "dev/1/2/b.flac", transcripts="a A\nb B\n")
    (tmp_path / "test/1/2/t.trans.txt").write_text("b B\n")
    found = find_inputs(tmp_path)
    assert found.sources == []
    assert faults(tmp_path) == {
        "dev/1/2/a.flac": "two files with the id a: the other is dev/1/2/a.wav",
        "dev/1/2/a.wav": "two files with the id a: the other is dev/1/2/a.flac",
        "dev/1/2/b.flac": "two files with the id b: the other is test/1/2/b.flac",
        "test/1/2/b.flac": "two files with the id b: the other is dev/1/2/b.flac",
    }


def test_a_name_that_a_line_cannot_hold_is_a_fault(tmp_path: Path) -> None:
    tree(tmp_path, "dev/1/2/a\tb.flac", "dev/1/2/a\nc.flac", transcripts="x X\n")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/dev/1/2/\xff.flac")).touch()
    reasons = faults(tmp_path)
    assert "tabs, line ends" in reasons["dev/1/2/a\tb.flac"]
    assert "tabs, line ends" in reasons["dev/1/2/a\nc.flac"]
    assert "not UTF-8" in reasons["dev/1/2/\udcff.flac"]


def test_links_are_followed_and_a_loop_has_an_end(tmp_path: Path) -> None:
    tree(tmp_path / "real", "dev/1/2/a.flac", transcripts="a A\n")
    tree(tmp_path / "linked")
    (tmp_path / "linked/dev").rename(tmp_path / "linked/old")
    (tmp_path / "linked/dev").symlink_to(tmp_path / "real/dev")
    (tmp_path / "linked/loop").symlink_to(tmp_path / "linked")
    found = find_inputs(tmp_path / "linked")
    assert [one.id for one in found.sources] == ["a"]
    assert "passed over" in found.notes[0]


def test_audio_elsewhere_is_passed_over_and_counted(tmp_path: Path) -> None:
    tree(tmp_path, "dev/1/2/a.flac", "dev/1/x.flac", "dev/1/2/3/y.wav", "dev/1/2/.hidden.flac", transcripts="a A\n")
    found = find_inputs(tmp_path)
    assert [one.id for one in found.sources] == ["a"]
    assert "2 audio files that are not in SPLIT/SPEAKER/CHAPTER" in found.notes[0]


@pytest.mark.parametrize(
    ("given", "do"),
    [("", "above/Libri"), ("above/Libri/dev", "above/Libri"), ("above/Libri/dev/1", "above/Libri"), ("empty", "SPLIT")],
)
def test_another_layout_is_refused_with_the_folder_that_was_meant(tmp_path: Path, given: str, do: str) -> None:
    tree(tmp_path / "above/Libri", "dev/1/2/a.flac")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no audio in the layout") as caught:
        find_inputs(tmp_path / given)
    said = caught.value.problems[0].do
    assert said == f"--input {tmp_path / do}" if do != "SPLIT" else "SPLIT/SPEAKER" in said


def test_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for given, says in (("nowhere", "no such directory"), ("file", "no directory")):
        with pytest.raises(UsageError, match=says):
            find_inputs(tmp_path / given)


def test_a_tree_that_was_prepared_has_its_transcripts_in_its_manifest(tmp_path: Path) -> None:
    tree(tmp_path, "dev/1/2/a.flac")
    entry = Entry("a", "dev", "1", tmp_path / "dev/1/2/a.flac", 5, "WORDS", "")
    write_manifest(tmp_path / "mine.tsv", Manifest([entry], 16000, True, 40.0))
    (tmp_path / "other.tsv").write_text("a\tb\n")
    found = find_inputs(tmp_path)
    assert [one.transcript for one in found.sources] == ["WORDS"]
    assert found.prepared is not None
    assert found.prepared.top_db == 40.0
    assert find_manifests(tmp_path) == [tmp_path / "mine.tsv"]


def test_a_link_to_itself_costs_nothing_but_itself(tmp_path: Path) -> None:
    tree(tmp_path, "dev/1/2/a.flac", transcripts="a A\nb B\n")
    (tmp_path / "dev/1/2/b.flac").symlink_to("b.flac")
    (tmp_path / "dev/1/loop").symlink_to("loop")
    assert [source.id for source in find_inputs(tmp_path).sources] == ["a"]
    assert faults(tmp_path) == {
        "dev/1/2/1-2.trans.txt:2": "there is no audio for b",
        "dev/1/2/b.flac": "the link cannot be followed: Too many levels of symbolic links",
        "dev/1/loop": "the link cannot be followed: Too many levels of symbolic links",
    }


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    tree(tmp_path, "dev/1/2/a.flac", transcripts="a A\n")
    for name in ("b.wav", "1-3.trans.txt", "unrelated"):
        os.mkfifo(tmp_path / "dev/1/2" / name)
    assert [source.id for source in find_inputs(tmp_path).sources] == ["a"]
    reason = "this is no file, but a pipe, a socket or a device"
    assert faults(tmp_path) == {"dev/1/2/1-3.trans.txt": reason, "dev/1/2/b.wav": reason}


def test_transcripts_may_be_in_capitals(tmp_path: Path) -> None:
    tree(tmp_path, "dev/1/2/a.FLAC")
    (tmp_path / "dev/1/2/1-2.TRANS.TXT").write_text("a A\n")
    assert [source.transcript for source in find_inputs(tmp_path).sources] == ["A"]
