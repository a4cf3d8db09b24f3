from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import DataError
from paceline.recipes.csa.manifest import Entry, Manifest, entry_line, load_manifest, read_manifest, write_manifest


def entries(folder: Path, count: int = 3) -> list[Entry]:
    names = [f"1-2-{number:04}" for number in range(count)]
    return [
        Entry(name, "dev", "1", folder / f"dev/1/2/{name}.flac", 16000 + number, f"WORD Nº {number}", "ab", 512, "cd")
        for number, name in enumerate(names)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "manifest.tsv"
    write_manifest(path, Manifest(entries(tmp_path), 16000, True, 60.0))
    return path


def test_what_is_written_is_read(path: Path) -> None:
    found = read_manifest(path)
    assert found == Manifest(entries(path.parent), 16000, True, 60.0, True)
    lines = path.read_text().splitlines()
    assert lines[:7] == [
        "# paceline speech manifest",
        "# version=1",
        "# state=complete",
        "# utterances=3",
        "# rate=16000",
        "# trim=true",
        "# top_db=60",
    ]
    assert lines[8].split("\t")[3:6] == ["dev/1/2/1-2-0000.flac", "16000", "1.000000"]


def test_it_is_sorted_and_the_digest_follows_what_training_sees(path: Path, tmp_path: Path) -> None:
    found = read_manifest(path)
    (tmp_path / "moved").mkdir()
    moved = tmp_path / "moved" / "other.tsv"
    write_manifest(moved, Manifest(entries(moved.parent)[::-1], 16000))
    assert read_manifest(moved).entries == entries(moved.parent)
    assert read_manifest(moved).digest == found.digest
    for change in ({"transcript": "OTHER"}, {"checksum": "ac"}, {"split": "test"}):
        other = replace(found, entries=[replace(found.entries[0], **change), *found.entries[1:]])
        assert other.digest != found.digest
    assert replace(found, rate=8000).digest != found.digest


def test_an_unfinished_one_is_valid_wherever_it_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "manifest.tsv"
    write_manifest(path, Manifest([], 16000, is_complete=False))
    size = path.stat().st_size
    for entry in entries(tmp_path):
        with path.open("a") as file:
            file.write(entry_line(tmp_path, 16000, entry) + "\n")
    content = path.read_bytes()
    for end in range(size, len(content) + 1):
        path.write_bytes(content[:end])
        whole = content[size:end].count(b"\n")
        assert read_manifest(path).entries == entries(tmp_path)[:whole]
    with pytest.raises(DataError, match="has not ended: 3"):
        load_manifest(path, "data.manifest")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("# paceline speech", "# another", "no manifest of speech"),
        ("version=1", "version=2", "version 2"),
        ("rate=16000", "rate=many", "rate=many"),
        ("state=complete", "state=so-so", "state=so-so"),
        ("\tcut\tsource", "", "columns"),
        ("1-2-0001\t", "1-2-0000\t", "twice: in lines 9 and 10"),
        ("\t16001\t", "\t0\t", "manifest is damaged"),
        ("\tWORD Nº 1\t", "\t \t", "a transcript are needed"),
        ("\tab\t", "\t", "9 columns instead of 10"),
        ("1-2-0002.flac\t16002\t1.000125\tWORD Nº 2\tab\t512\tcd\n", "", "cut off"),
        ("utterances=3", "utterances=4", "says 4 utterances, and 3 are there"),
    ],
)
def test_a_damaged_one_is_refused(path: Path, old: str, new: str, says: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(DataError, match=says):
        read_manifest(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such manifest"):
        read_manifest(tmp_path / "nowhere.tsv")
    with pytest.raises(DataError, match="cannot be read"):
        read_manifest(tmp_path)
    (tmp_path / "a.tsv").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="no manifest of speech"):
        read_manifest(tmp_path / "a.tsv")


def test_only_a_corpus_that_is_all_there_can_be_trained_on(path: Path) -> None:
    with pytest.raises(DataError, match="3 of the 3 audio files"):
        load_manifest(path, "data.manifest")
    for entry in entries(path.parent):
        entry.path.parent.mkdir(parents=True, exist_ok=True)
        entry.path.touch()
    assert len(load_manifest(path, "data.manifest").entries) == 3
    write_manifest(path, Manifest([], 16000))
    with pytest.raises(DataError, match="no utterances"):
        load_manifest(path, "data.manifest")
