from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile

from paceline.errors import DataError, OccupiedError, StorageError, UsageError
from paceline.recipes.csa import prepare_work
from paceline.recipes.csa.audio import checksum_of, read_samples
from paceline.recipes.csa.manifest import load_manifest, read_manifest
from paceline.recipes.csa.prepare import Preparation, prepare
from paceline.recipes.csa.prepare_request import Request
from tests.recipes.csa.tones import build_tree, write_tone


def silently(_: object) -> None:
    pass


@pytest.fixture
def asked(tmp_path: Path) -> Request:
    """Eight utterances of tones with silence around them, in this process."""
    return Request(build_tree(tmp_path / "in"), tmp_path / "out", trim=True, workers=1)


def go(request: Request) -> Preparation:
    return prepare(request, silently)


def undisturbed(request: Request) -> bytes:
    """What the manifest of another place says when nothing happens."""
    return go(replace(request, output=request.output.with_name("other"))).manifest_path.read_bytes()


def test_the_manifest_says_what_is_there(asked: Request) -> None:
    made = go(asked)
    manifest = load_manifest(made.manifest_path, "here")
    assert manifest == replace(made.manifest, is_complete=True)
    assert (made.num_made, made.faults, made.notes) == (8, [], [])
    assert [entry.id for entry in manifest.entries] == [f"{c}-{c}0-{n:04}" for c in (1, 2) for n in range(4)]
    for entry in manifest.entries:
        samples = read_samples(entry.path.read_bytes(), 16000)
        assert (len(samples), checksum_of(samples)) == (entry.samples, entry.checksum)
        source = asked.input / entry.path.relative_to(asked.output)
        assert soundfile.info(source).frames == entry.samples + entry.cut
        assert entry.cut > 3000
    assert manifest.entries[5].transcript == "TONE NUMBER 1"


def test_the_second_time_there_is_nothing_to_do(asked: Request) -> None:
    first = go(asked)
    before = {path: path.stat().st_mtime_ns for path in asked.output.rglob("*") if path.suffix in (".flac", ".tsv")}
    second = go(asked)
    assert second.num_made == 0
    assert second.manifest.entries == first.manifest.entries
    assert {path: path.stat().st_mtime_ns for path in before} == before


def flip(path: Path) -> None:
    """A byte in the middle: the header still says what it said."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x55
    path.write_bytes(content)


def test_what_was_damaged_is_found_by_decoding_and_made_again_alone(asked: Request) -> None:
    made = go(asked)
    content = made.manifest_path.read_bytes()
    paths = [entry.path for entry in made.manifest.entries]
    samples = [soundfile.info(path).frames for path in paths]
    flip(paths[0])
    paths[1].unlink()
    write_tone(paths[2], samples[2] / 16000, hertz=999)  # sound, as long as before, and something else
    assert soundfile.info(paths[0]).frames == samples[0]
    again = go(asked)
    assert again.num_made == 3
    assert "3 utterances, such as 1-10-0000: damaged" in again.notes[0]
    assert made.manifest_path.read_bytes() == content
    assert [soundfile.info(path).frames for path in paths] == samples


def test_a_source_or_transcript_that_changed_is_made_again(asked: Request) -> None:
    go(asked)
    write_tone(asked.input / "dev/1/10/1-10-0002.flac", 0.7, hertz=999)
    transcripts = asked.input / "dev/2/20/2-20.trans.txt"
    transcripts.write_text(transcripts.read_text().replace("NUMBER 3", "NUMBER THREE"))
    again = go(asked)
    assert again.num_made == 2
    assert again.manifest.entries[7].transcript == "TONE NUMBER THREE"
    assert again.manifest_path.read_bytes() == undisturbed(asked)


def test_more_of_the_same_is_added(asked: Request, tmp_path: Path) -> None:
    go(asked)
    build_tree(asked.input, chapters=3)
    again = go(asked)
    assert again.num_made == 4
    assert again.manifest_path.read_bytes() == undisturbed(asked)


def test_what_cannot_be_used_is_reported_and_the_rest_is_made(asked: Request) -> None:
    folder = asked.input / "dev/1/10"
    content = (folder / "1-10-0000.flac").read_bytes()
    (folder / "1-10-0000.flac").write_bytes(content[: len(content) // 2])
    (folder / "1-10-0001.flac").write_bytes(b"")
    (folder / "1-10-0002.flac").unlink()
    (folder / "1-10-0002.flac").symlink_to("nowhere.flac")
    write_tone(folder / "1-10-0003.flac", 0.0, silence=0.2)
    write_tone(folder / "unheard.flac")
    made = go(asked)
    assert made.num_made == 4
    report = (asked.output / "errors.tsv").read_text().splitlines()
    assert report[0] == "path\treason"
    reasons = dict(line.split("\t") for line in report[1:])
    assert reasons.pop("dev/1/10/1-10-0000.flac").startswith("damaged: ")
    assert reasons == {
        "dev/1/10/1-10-0001.flac": "empty: the file has no bytes",
        "dev/1/10/1-10-0002.flac": "it cannot be read: it is a link to nothing",
        "dev/1/10/1-10-0003.flac": "silent: nothing in it is louder than the last bit of a 16-bit number",
        "dev/1/10/unheard.flac": "there is no transcript for it",
    }
    assert len(load_manifest(made.manifest_path, "here").entries) == 4


def test_once_repaired_only_they_are_made_and_the_report_goes(asked: Request) -> None:
    broken = asked.input / "dev/1/10/1-10-0001.flac"
    content = broken.read_bytes()
    broken.write_bytes(content[:999])
    before = go(asked).manifest_path.stat().st_mtime_ns
    assert go(asked).manifest_path.stat().st_mtime_ns == before  # tried again in vain: nothing is touched
    broken.write_bytes(content)
    again = go(asked)
    assert (again.num_made, again.faults) == (1, [])
    assert not (asked.output / "errors.tsv").exists()
    assert again.manifest_path.read_bytes() == undisturbed(asked)


def test_an_utterance_that_lost_its_transcript_leaves_the_manifest(asked: Request) -> None:
    go(asked)
    (asked.input / "dev/2/20/2-20.trans.txt").write_text("2-20-0000 TONE NUMBER 0\n")
    again = go(asked)
    assert len(again.faults) == 3
    assert [entry.id for entry in read_manifest(again.manifest_path).entries][4:] == ["2-20-0000"]


@contextmanager
def room_for(monkeypatch: pytest.MonkeyPatch, count: int, error: BaseException) -> Iterator[None]:
    """So many files can be written, then comes the error, with part of a file in the way."""
    write, written = prepare_work.write_bytes, list[str]()

    def limited(path: str, content: bytes, *, is_synced: bool = True) -> None:
        if len(written) == count:
            folder, _, name = path.rpartition("/")
            Path(folder).mkdir(parents=True, exist_ok=True)
            Path(folder, f".{name}.99999").write_bytes(content[:100])
            raise error
        write(path, content, is_synced=is_synced)
        written.append(path)

    with monkeypatch.context() as patch:
        patch.setattr(prepare_work, "write_bytes", limited)
        yield


def test_a_full_disk_loses_nothing(asked: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "somewhere")
    for so_far in (3, 5):
        with room_for(monkeypatch, 3 if so_far == 3 else 2, full), pytest.raises(StorageError, match="disk is full"):
            go(asked)
        found = read_manifest(asked.output / "manifest.tsv")
        assert (len(found.entries), found.is_complete) == (so_far, False)
    made = go(asked)
    assert made.num_made == 3
    assert made.manifest_path.read_bytes() == undisturbed(asked)
    assert [path.name for path in asked.output.rglob(".*")] == [".prepare.lock"]


def test_ctrl_c_and_a_torn_line_lose_nothing(asked: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    with room_for(monkeypatch, 3, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        go(asked)
    path = asked.output / "manifest.tsv"
    path.write_bytes(path.read_bytes()[:-30])
    made = go(asked)
    assert made.num_made == 6
    assert made.manifest_path.read_bytes() == undisturbed(asked)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rate": 8000}, "--rate was 16000 and is 8000"),
        ({"trim": False}, "--trim was at 60 dB and is off"),
        ({"top_db": 30.0}, "--trim was at 60 dB and is at 30 dB"),
    ],
)
def test_other_parameters_mean_another_output(asked: Request, change: dict[str, float], says: str) -> None:
    content = go(asked).manifest_path.read_bytes()
    with pytest.raises(OccupiedError, match=says):
        go(replace(asked, **change))  # type: ignore[arg-type]
    assert (asked.output / "manifest.tsv").read_bytes() == content


def test_other_data_means_another_output(asked: Request, tmp_path: Path) -> None:
    go(asked)
    fewer = build_tree(tmp_path / "fewer", chapters=1)
    with pytest.raises(OccupiedError, match="4 of its 8 utterances are not in"):
        go(replace(asked, input=fewer))


def test_a_directory_with_something_else_is_left_alone(asked: Request) -> None:
    asked.output.mkdir()
    (asked.output / "thesis.tex").touch()
    with pytest.raises(OccupiedError, match="something else"):
        go(asked)
    (asked.output / "thesis.tex").unlink()
    named = replace(asked, manifest=asked.output / "mine.tsv")
    assert go(named).manifest_path == asked.output / "mine.tsv"
    with pytest.raises(OccupiedError, match=r"is mine\.tsv"):
        go(asked)


def test_what_was_trimmed_once_is_not_trimmed_again(asked: Request, tmp_path: Path) -> None:
    first = go(asked)
    second = Request(asked.output, tmp_path / "second", rate=16000, workers=1)
    for request in (replace(second, trim=True), second):
        passed = go(request)
        assert "trimmed already (at 60 dB)" in passed.notes[0]
        assert (passed.manifest.is_trimmed, passed.manifest.top_db) == (True, 60.0)
        assert passed.manifest.digest == first.manifest.digest
    with pytest.raises(DataError, match="at 60 dB, and --top-db 30"):
        go(replace(second, trim=True, top_db=30.0))
    slower = go(replace(second, output=tmp_path / "third", rate=8000))
    assert [2 * entry.samples for entry in slower.manifest.entries] == [e.samples for e in first.manifest.entries]


def test_silence_that_a_first_trimming_left_stays(asked: Request, tmp_path: Path) -> None:
    go(asked)
    for path in asked.output.rglob("*.flac"):
        write_tone(path, silence=0.5)
    passed = go(Request(asked.output, tmp_path / "second", trim=True, workers=1))
    assert {entry.samples for entry in passed.manifest.entries} == {24000}


def test_an_input_whose_preparation_has_not_ended_is_refused(
    asked: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with room_for(monkeypatch, 3, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        go(asked)
    with pytest.raises(DataError, match="has not ended"):
        go(Request(asked.output, tmp_path / "second", workers=1))


def test_nothing_usable_is_an_error(asked: Request) -> None:
    for path in asked.input.rglob("*.flac"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="nothing could be prepared: 8 faults"):
        go(asked)
    assert len((asked.output / "errors.tsv").read_text().splitlines()) == 9


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rate": 0}, "--rate 0"),
        ({"top_db": 0.0}, "--top-db 0"),
        ({"top_db": float("nan")}, "--top-db nan"),
        ({"workers": 0}, "--workers 0"),
        ({"workers": 10000}, "--workers 10000"),
        ({"output": Path("in/below")}, "lie within each other"),
        ({"output": Path(".")}, "lie within each other"),
        ({"output": Path("in")}, "lie within each other"),
        ({"output": Path("link/below")}, "lie within each other"),
        ({"manifest": Path("elsewhere.tsv")}, "directly in --output"),
        ({"manifest": Path("out/errors.tsv")}, r"errors\.tsv is the report"),
        ({"manifest": Path("out/manifest.csv")}, r"ends in \.tsv"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    asked: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Path], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("in")
    with pytest.raises(UsageError, match=says):
        go(replace(asked, input=Path("in"), output=change.pop("output", Path("out")), **change))
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "in/below").exists()
