"""Utterances out of files: in part, trimmed, and refused with the file's name where they are not what was listed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from paceline.errors import ConfigError, DataError
from paceline.recipes.csa.audio import checksum_of
from paceline.recipes.csa.crops import Crop
from paceline.recipes.csa.data_config import Data
from paceline.recipes.csa.manifest import Entry, Manifest, write_manifest
from paceline.recipes.csa.recordings import Recordings
from paceline.recipes.csa.source import find_manifest, identify_data
from paceline.recipes.csa.utterances import load_utterances
from tests.recipes.csa.tones import build_tree, tone, write_tone


def whole(total: int) -> Crop:
    return Crop(0, total, total)


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    """Half a second of a tone between two fifths of silence."""
    path = tmp_path / "1-2-0000.flac"
    write_tone(path, 0.5, silence=0.2)
    samples, _ = soundfile.read(path, dtype="int16")
    return Entry("1-2-0000", "dev", "1", path, len(samples), "A TONE", checksum_of(samples))


def test_in_whole_and_in_part(entry: Entry) -> None:
    recordings = Recordings([entry], None)
    heard, crop = recordings.hear(0, whole)
    assert crop.total == len(heard) == entry.samples == 14_400
    np.testing.assert_allclose(heard, tone(0.5, silence=0.2), atol=1e-4)
    part, _ = recordings.hear(0, lambda total: Crop(5_000, 2_000, total))
    assert np.array_equal(part, heard[5_000:7_000])
    assert part.dtype == np.float32


def test_silence_is_cut_off_as_it_is_read(entry: Entry) -> None:
    trimmed, crop = Recordings([entry], 60.0).hear(0, whole)
    assert 8_000 <= len(trimmed) == crop.total <= 8_000 + 4 * 2_048
    part, _ = Recordings([entry], 60.0).hear(0, lambda total: Crop(1_000, 500, total))
    assert np.array_equal(part, trimmed[1_000:1_500])


def test_what_is_not_as_it_was_listed_is_named(entry: Entry) -> None:
    def fails(changed: Entry, what: str, choose=whole) -> None:
        with pytest.raises(DataError, match=what) as caught:
            Recordings([changed], None).hear(0, choose)
        assert caught.value.problems[0].where == str(changed.path)
        assert "prepare librispeech" in caught.value.problems[0].do

    fails(replace(entry, path=entry.path.with_name("gone.flac")), "an audio file is missing")
    fails(replace(entry, samples=14_000), "14,400 samples, not 16000 Hz, 1 channel, 14,000 samples")
    fails(replace(entry, checksum="0" * 32), "other samples than were listed")
    content = entry.path.read_bytes()
    entry.path.write_bytes(content[: len(content) // 2])
    fails(entry, "damaged|cannot be read")
    entry.path.write_bytes(b"")
    fails(entry, "cannot be read")


def test_a_tree_as_it_was_published(tmp_path: Path) -> None:
    root = build_tree(tmp_path / "tree", chapters=2, utterances=4)
    (root / "dev" / "1" / "10" / "1-10-0009.flac").write_bytes(b"")
    data = Data(source="tree", path=str(root), validation_share=0.5)
    sides = load_utterances(data)
    heard = {*sides.train.transcripts}, {*sides.validation.transcripts}
    assert heard[0].isdisjoint(heard[1])
    assert len(sides.train.transcripts) + len(sides.validation.transcripts) == 8
    assert "1-10-0009" in sides.note
    before = identify_data(data)
    (root / "dev" / "2" / "20" / "2-20.trans.txt").write_text("2-20-0000 ANOTHER WORD\n")
    assert identify_data(data) != before


def test_a_tree_of_another_rate_is_to_be_prepared(tmp_path: Path) -> None:
    root = build_tree(tmp_path / "tree", chapters=1, utterances=1)
    write_tone(root / "dev" / "1" / "10" / "1-10-0000.flac", rate=8_000)
    with pytest.raises(DataError, match="no mono FLAC of 16000 Hz, but FLAC of 8000 Hz"):
        load_utterances(Data(source="tree", path=str(root)))


def test_no_tree() -> None:
    with pytest.raises(DataError, match="no such directory") as caught:
        identify_data(Data(source="tree", path="nowhere"))
    assert caught.value.problems[0].where == "data.path=nowhere"


@pytest.fixture
def manifest(tmp_path: Path, entry: Entry) -> Path:
    entries = []
    for number, split in enumerate(("train-a", "train-a", "train-b", "dev")):
        path = entry.path.with_name(f"{number}.flac")
        path.write_bytes(entry.path.read_bytes())
        entries.append(replace(entry, id=f"{number}", split=split, path=path, transcript=f"TONE {number}"))
    write_manifest(tmp_path / "manifest.tsv", Manifest(entries, 16_000))
    return tmp_path / "manifest.tsv"


def test_splits_of_a_manifest(manifest: Path) -> None:
    def sides(**data: object) -> tuple[list[str], list[str]]:
        found = load_utterances(Data(source="manifest", manifest=str(manifest), **data))  # type: ignore[arg-type]
        return [*found.train.transcripts], [*found.validation.transcripts]

    assert sides(validation_split="dev") == (["TONE 0", "TONE 1", "TONE 2"], ["TONE 3"])
    assert sides(validation_split="dev", splits=["train-b"]) == (["TONE 2"], ["TONE 3"])
    trained, held_out = sides(validation_share=0.5)
    assert sorted(trained + held_out) == [f"TONE {number}" for number in range(4)]
    with pytest.raises(DataError, match=r"no utterances of test \(there are: dev, train-a, train-b\)"):
        sides(validation_split="test")


def test_lines_in_another_order_are_the_same_samples(manifest: Path) -> None:
    data = Data(source="manifest", manifest=str(manifest), validation_split="dev")
    before = identify_data(data), [*load_utterances(data).train.transcripts]
    *head, first, second, third, last = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join([*head, third, last, first, second]))
    assert (identify_data(data), [*load_utterances(data).train.transcripts]) == before


def test_a_manifest_of_other_data(manifest: Path, tmp_path: Path) -> None:
    data = Data(source="manifest", manifest=str(manifest), validation_split="dev")
    digest = identify_data(data)
    (tmp_path / "3.flac").rename(tmp_path / "3.old")
    with pytest.raises(DataError, match="1 of the 4 audio files of this manifest are missing"):
        load_utterances(data)
    write_tone(tmp_path / "3.flac", 0.7)
    assert identify_data(data) == digest, "files are not read to identify a manifest"
    with pytest.raises(DataError, match="another file than was listed"):
        load_utterances(data).validation.hear(0, whole)
    with pytest.raises(DataError, match="no such manifest"):
        identify_data(Data(source="manifest", manifest=str(tmp_path / "other.tsv")))


def test_what_was_trimmed_is_not_trimmed_again(manifest: Path, entry: Entry) -> None:
    write_manifest(manifest, Manifest([entry], 16_000, is_trimmed=True, top_db=60.0))
    assert find_manifest(Data(source="manifest", manifest=str(manifest))).is_trimmed
    with pytest.raises(ConfigError, match="was trimmed when it was prepared"):
        find_manifest(Data(source="manifest", manifest=str(manifest), trim="runtime"))


def test_another_rate(manifest: Path, entry: Entry) -> None:
    write_manifest(manifest, Manifest([entry], 8_000))
    with pytest.raises(DataError, match="8000 samples per second"):
        find_manifest(Data(source="manifest", manifest=str(manifest)))


def test_a_side_without_utterances_names_the_key_that_made_it(manifest: Path, entry: Entry) -> None:
    write_manifest(manifest, Manifest([entry], 16_000))
    for data, key in (({"validation_split": entry.split}, "validation_split"), ({}, "validation_share")):
        with pytest.raises(DataError, match="there are no utterances to") as caught:
            load_utterances(Data(source="manifest", manifest=str(manifest), **data))  # type: ignore[arg-type]
        assert f"another data.{key}" in caught.value.problems[0].do
