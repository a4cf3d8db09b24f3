"""Preparing text: every document once and in one split, whatever kills it, and nothing mixed that does not belong together."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.errors import DataError, OccupiedError, StorageError, UsageError
from paceline.files import Lock
from paceline.recipes.nsa.data import hub, shards
from paceline.recipes.nsa.data.corpus import write_corpus
from paceline.recipes.nsa.data.manifest import COMPLETE, load_manifest, load_stored_tokenizer, read_manifest
from paceline.recipes.nsa.data.prepare import Preparation, prepare
from paceline.recipes.nsa.data.request import Request
from paceline.recipes.nsa.data.split import SPLITS
from paceline.recipes.nsa.data.stream import map_shards
from paceline.recipes.nsa.data.tokenizer import load_tokenizer
from tests.recipes.nsa.data.gpt2 import gpt2_files

pytestmark = pytest.mark.timeout(90)


def write_lines(path: Path, texts: list[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return write_corpus(300, seed=1)


@pytest.fixture
def request_(tmp_path: Path, texts: list[str]) -> Request:
    """300 documents in two files, in parts of 40,000 tokens: 9 of them, with an eighth held out."""
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in" / "a.jsonl", texts[:100])
    write_lines(tmp_path / "in" / "b.jsonl", texts[100:])
    return Request((tmp_path / "in",), tmp_path / "out", validation_share=0.125, shard_tokens=40_000)


def run(request: Request) -> Preparation:
    return prepare(request, lambda progress: None)


def read_back(directory: Path) -> dict[str, list[str]]:
    """The documents of each split, as text."""
    manifest = load_manifest(directory, "")
    tokenizer = load_stored_tokenizer(directory, manifest)
    found: dict[str, list[str]] = {}
    for split in SPLITS:
        stream = map_shards(directory, manifest, split)
        ends = [*stream.starts(0, len(stream)), len(stream)]
        pieces = [stream.tokens(first, end).tolist() for first, end in itertools.pairwise(ends)]
        assert all(piece[-1] == manifest.tokenizer.end for piece in pieces)
        found[split] = [tokenizer.decode(piece) for piece in pieces]
    return found


def content(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.name != ".prepare.lock"}


def test_every_document_is_in_one_split_in_its_order_and_comes_back(request_: Request, texts: list[str]) -> None:
    done = run(request_)
    assert (done.is_new, done.notes, done.manifest.state) == (True, [], COMPLETE)
    assert len(done.manifest.parts) == 9
    found = read_back(request_.out)
    held_out = set(found["validation"])
    assert found["train"] == [text for text in texts if text not in held_out]
    assert found["validation"] == [text for text in texts if text in held_out]
    assert 0.05 < len(held_out) / 300 < 0.2
    counts = done.manifest.counts()
    assert counts["documents"] == 300
    assert counts["tokens"] == sum(len(text.encode()) + 1 for text in texts)


def test_the_sides_cannot_overlap_whatever_the_order_and_the_blanks(tmp_path: Path, texts: list[str]) -> None:
    """Every document three times: in another file, in another order, with other blanks between its words."""
    write_lines(tmp_path / "a.jsonl", texts)
    write_lines(tmp_path / "b.jsonl", texts[::-1])
    write_lines(tmp_path / "c.jsonl", [text.replace(" ", "\n  ") for text in texts])
    run(Request((tmp_path,), tmp_path / "out", validation_share=0.3, shard_tokens=100_000))
    words = {split: Counter(" ".join(t.split()) for t in found) for split, found in read_back(tmp_path / "out").items()}
    assert words["train"].keys() & words["validation"].keys() == set()
    assert set((words["train"] + words["validation"]).values()) == {3}
    assert min(map(len, words.values())) > 50


def test_a_split_does_not_depend_on_what_else_is_there(request_: Request, tmp_path: Path) -> None:
    run(request_)
    run(replace(request_, given=(tmp_path / "in" / "b.jsonl",), out=tmp_path / "less", shard_tokens=10**6))
    whole, less = read_back(request_.out), read_back(tmp_path / "less")
    assert all(set(less[split]) <= set(whole[split]) for split in SPLITS)


def test_typed_again_there_is_nothing_to_do(request_: Request) -> None:
    run(request_)
    before = {file: file.stat().st_mtime_ns for file in request_.out.glob("*.tokens")}
    again = run(request_)
    assert not again.is_new
    assert {file: file.stat().st_mtime_ns for file in request_.out.glob("*.tokens")} == before


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "foreign"])
def test_a_damaged_shard_alone_is_made_again(request_: Request, damage: str) -> None:
    run(request_)
    whole = content(request_.out)
    victim = request_.out / "train-00003.tokens"
    data = whole[victim.name]
    victim.unlink()
    if damage != "missing":
        changed = {"truncated": data[:-9], "changed": data[:-20] + b"x" + data[-19:], "foreign": b"PAR1" + bytes(99)}
        victim.write_bytes(changed[damage])
    before = {file: file.stat().st_ino for file in request_.out.glob("*.tokens") if "00003" not in file.name}
    again = run(request_)
    assert again.is_new
    assert [note.startswith("made again: train-00003.tokens") for note in again.notes] == [True]
    assert content(request_.out) == whole
    assert {file: file.stat().st_ino for file in before} == before


DIES = """
import os, signal, sys
from pathlib import Path
calls, limit = 0, int(sys.argv[1])

def dying(function):
    def call(*arguments, **named):
        global calls
        calls += 1
        if calls == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)
    return call

os.fsync, os.replace = dying(os.fsync), dying(os.replace)
from paceline.recipes.nsa.data.prepare import prepare
from paceline.recipes.nsa.data.request import Request
prepare(Request((Path("in"),), Path("out"), validation_share=0.125, shard_tokens=40_000), lambda progress: None)
"""


def test_killed_before_every_write_that_lasts_it_ends_with_the_same_bytes(request_: Request, tmp_path: Path) -> None:
    """Each process dies one step later than the one before it, so that every step of a part is the last one once."""
    for limit in range(1, 40):
        done = subprocess.run([sys.executable, "-c", DIES, str(limit)], cwd=tmp_path, timeout=60, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
    assert 9 < limit < 39
    clean = replace(request_, out=tmp_path / "clean")
    run(clean)
    made, expected = content(request_.out), content(clean.out)
    assert made.keys() == expected.keys()
    names = [name for name in expected if name.endswith(".tokens")]
    assert [name for name in names if made[name] != expected[name]] == []
    assert read_manifest(request_.out).parts == read_manifest(clean.out).parts  # type: ignore[union-attr]


def test_kill_9_at_any_moment_and_nothing_is_redone(tmp_path: Path) -> None:
    texts = write_corpus(700, seed=2)
    write_lines(tmp_path / "a.jsonl", texts)
    arguments = ["--from", "a.jsonl", "--out", "out", "--shard-tokens", "2e4", "--validation-share", "0.1"]
    command = [sys.executable, "-m", "paceline", "prepare", "fineweb", *arguments]
    num_seen = 0
    for _ in range(3):
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 60
            while len(parts_of(tmp_path / "out")) < num_seen + 5 and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            process.kill()
        assert process.returncode == -signal.SIGKILL
        kept = parts_of(tmp_path / "out")
        num_seen = len(kept)
    inodes = {file: (tmp_path / "out" / file).stat().st_ino for part in kept for file in part}
    done = subprocess.run(command, cwd=tmp_path, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {file: (tmp_path / "out" / file).stat().st_ino for file in inodes} == inodes
    found = read_back(tmp_path / "out")
    assert Counter(found["train"] + found["validation"]) == Counter(texts)


def parts_of(directory: Path) -> list[list[str]]:
    try:
        parts = json.loads((directory / "manifest.json").read_text())["parts"]
    except FileNotFoundError:
        return []
    return [[shard["file"] for shard in part["shards"].values()] for part in parts]


def test_an_unfinished_directory_is_not_trained_on(request_: Request) -> None:
    run(request_)
    manifest = json.loads((request_.out / "manifest.json").read_text())
    (request_.out / "manifest.json").write_text(json.dumps(manifest | {"state": "unfinished"}))
    with pytest.raises(DataError, match="has not ended"):
        load_manifest(request_.out, "data.path=out")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"validation_share": 0.2}, r"--validation-share was 0\.125 and is 0\.2"),
        ({"shard_tokens": 50_000}, "--shard-tokens was 40000 and is 50000"),
        ({"max_tokens": 5}, "--max-tokens was None and is 5"),
        ({"field": "body"}, "--field was text and is body"),
    ],
)
def test_other_settings_do_not_mix_into_a_directory(request_: Request, change: dict[str, float], says: str) -> None:
    run(request_)
    with pytest.raises(OccupiedError, match=says):
        run(replace(request_, **change))  # type: ignore[arg-type]


def test_other_inputs_do_not_mix_into_a_directory(request_: Request, tmp_path: Path) -> None:
    run(request_)
    with open(tmp_path / "in" / "b.jsonl", "a") as stream:
        stream.write('{"text": "one more"}\n')
    with pytest.raises(OccupiedError, match=r"other data.*b\.jsonl"):
        run(request_)


def test_a_directory_of_something_else_is_left_alone(request_: Request) -> None:
    request_.out.mkdir()
    (request_.out / "train-00000.tokens").write_bytes(b"mine")
    with pytest.raises(OccupiedError, match="other data"):
        run(request_)
    assert (request_.out / "train-00000.tokens").read_bytes() == b"mine"


def test_two_at_once_are_refused(request_: Request) -> None:
    request_.out.mkdir()
    lock = Lock(request_.out / ".prepare.lock")
    assert lock.acquire()
    with pytest.raises(OccupiedError, match="already"):
        run(request_)
    lock.release()


def test_a_limit_ends_after_the_document_that_reaches_it(request_: Request, texts: list[str]) -> None:
    done = run(replace(request_, max_tokens=100_000, shard_tokens=30_000))
    counts = done.manifest.counts()
    sizes = np.cumsum([len(text.encode()) + 1 for text in texts])
    expected = int(np.searchsorted(sizes, 100_000)) + 1
    assert (counts["documents"], counts["tokens"]) == (expected, sizes[expected - 1])


@pytest.mark.parametrize(
    ("line", "says"),
    [(b"nonsense\n", "no JSON"), (b'{"text": "\xff"}\n', "not UTF-8"), (b'{"txt": "a"}\n', "no field 'text'")],
)
def test_a_bad_line_is_named_or_passed_over_and_counted(
    request_: Request, tmp_path: Path, line: bytes, says: str
) -> None:
    path = tmp_path / "in" / "a.jsonl"
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(DataError, match=says) as caught:
        run(request_)
    assert f"{path}:101" in str(caught.value)
    done = run(replace(request_, skip_bad=True, out=tmp_path / "other"))
    assert (done.manifest.counts()["bad"], done.manifest.counts()["documents"]) == (1, 300)
    assert done.notes[0].startswith(f"passed over: {path}:101: ")


def test_empty_documents_and_empty_files_are_left_out(request_: Request, tmp_path: Path) -> None:
    for name in ("0.jsonl", "1.parquet", "2.txt"):
        (tmp_path / "in" / name).touch()
    write_lines(tmp_path / "in" / "c.jsonl", ["", "  \n ", "\t"])
    (tmp_path / "in" / "notes.pdf").write_bytes(b"%PDF")
    done = run(request_)
    assert (done.manifest.counts()["empty"], done.manifest.counts()["documents"]) == (3, 300)
    assert done.notes == ["3 empty files", "passed over: 1 files with other endings"]


def test_nothing_to_prepare_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    out = tmp_path / "out"
    with pytest.raises(DataError, match="the file is empty"):
        run(Request((tmp_path / "a.jsonl",), out))
    with pytest.raises(UsageError, match="no such file"):
        run(Request((tmp_path / "b.jsonl",), out))
    (tmp_path / "a.pdf").touch()
    with pytest.raises(UsageError, match=r"ends in '\.pdf'"):
        run(Request((tmp_path / "a.pdf",), out))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="nothing to prepare"):
        run(Request((tmp_path / "empty",), out))
    write_lines(tmp_path / "a.jsonl", ["only one"])
    with pytest.raises(DataError, match="none of the 1 documents"):
        run(Request((tmp_path / "a.jsonl",), out))
    (tmp_path / "a.jsonl").write_text('{"text": " "}\nnonsense\n')
    with pytest.raises(DataError, match="no document with text in it: 1 empty, 1 that could not be read"):
        run(Request((tmp_path / "a.jsonl",), tmp_path / "none", skip_bad=True))


def test_texts_may_lie_in_the_directory_that_is_written(request_: Request, tmp_path: Path) -> None:
    """And what lies in one below them is none of them."""
    done = run(replace(request_, out=tmp_path))
    assert done.manifest.counts()["documents"] == 300
    (request_.out / "deeper").mkdir(parents=True)
    write_lines(request_.out / "deeper" / "c.jsonl", ["not this one"])
    done = run(replace(request_, given=(tmp_path / "in", tmp_path), out=request_.out))
    assert done.manifest.counts()["documents"] == 300


def test_a_file_named_twice_is_read_once(request_: Request, tmp_path: Path) -> None:
    done = run(
        replace(request_, given=(tmp_path / "in", tmp_path / "in" / "a.jsonl", tmp_path / "in" / "." / "b.jsonl"))
    )
    assert done.manifest.counts()["documents"] == 300


def test_a_full_disk_is_an_error_with_a_remedy_and_the_next_call_goes_on(
    request_: Request, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = 0

    def write_bytes(self: shards.ShardWriter, data: bytes) -> None:
        nonlocal written
        written += len(data)
        if written > 300_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(self, data)

    original = shards.ShardWriter._write_bytes
    monkeypatch.setattr(shards.ShardWriter, "_write_bytes", write_bytes)
    with pytest.raises(StorageError, match="the disk is full"):
        run(request_)
    manifest = read_manifest(request_.out)
    assert manifest is not None
    assert len(manifest.parts) == 3
    assert not list(request_.out.glob(".*.part"))
    monkeypatch.undo()
    run(request_)
    run(replace(request_, out=tmp_path / "clean"))
    assert content(request_.out) == content(tmp_path / "clean")


def test_a_place_that_cannot_be_written_is_refused(request_: Request, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="a file stands where a directory is needed"):
        run(replace(request_, out=tmp_path / "file"))
    if os.geteuid():
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(UsageError, match="cannot write there"):
            run(replace(request_, out=tmp_path / "locked" / "x"))


def test_another_tokenizer_than_before_is_refused(request_: Request, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs paceline[lm]")
    run(request_)
    with pytest.raises(DataError, match="bytes:1") as caught:
        run(replace(request_, tokenizer=str(gpt2_files(tmp_path / "gpt2"))))
    assert "without one it is bytes" in caught.value.problems[0].do


def test_the_tokenizer_travels_with_the_shards(request_: Request, tmp_path: Path, texts: list[str]) -> None:
    pytest.importorskip("tokenizers", reason="needs paceline[lm]")
    files = gpt2_files(tmp_path / "gpt2")
    run(replace(request_, tokenizer=str(files)))
    files.rename(tmp_path / "away")
    found = read_back(request_.out)
    assert Counter(found["train"] + found["validation"]) == Counter(texts)
    other = load_tokenizer(str(gpt2_files(tmp_path / "other", "xyz"))).content()
    (tmp_path / "away").rename(files)
    for damage, says in ((str(other), "not the one that made these tokens"), ("{", "no JSON"), (None, "no such")):
        stored = request_.out / "tokenizer.json"
        stored.unlink()
        if damage is not None:
            stored.write_text(damage)
        with pytest.raises(DataError, match=says) as caught:
            read_back(request_.out)
        assert "makes what is damaged anew" in caught.value.problems[0].do
        run(replace(request_, tokenizer=str(files)))
        assert Counter(read_back(request_.out)["train"]) == Counter(found["train"]), "and so it does"


def test_a_tokenizer_without_a_token_for_the_text_loses_none_of_it_silently(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs paceline[lm]")
    whole_words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}
    pieces = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    lines = write_lines(tmp_path / "a.jsonl", ["aa", "b"])
    for model, says in ((whole_words, "cannot encode the text"), (pieces, "no token for anything in this text")):
        file = tmp_path / f"{model['type']}.json"
        file.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
        with pytest.raises(DataError, match=says):
            run(Request((lines,), tmp_path / file.stem, tokenizer=str(file)))


def test_the_three_kinds_of_files_give_the_same_documents(request_: Request, tmp_path: Path, texts: list[str]) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs paceline[lm]")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs paceline[lm]")
    parquet.write_table(arrow.table({"text": texts}), tmp_path / "a.parquet", row_group_size=70)
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "texts" / f"{number:03}.txt").write_text(text)
    run(request_)
    for name in ("a.parquet", "texts"):
        run(replace(request_, given=(tmp_path / name,), out=tmp_path / f"out-{name}"))
        assert read_back(tmp_path / f"out-{name}") == read_back(request_.out)


class TestHub:
    """The hub's library in place of the hub: what it says, and files that lie here."""

    @pytest.fixture
    def fetched(self, tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
        arrow = pytest.importorskip("pyarrow", reason="needs paceline[lm]")
        parquet = pytest.importorskip("pyarrow.parquet", reason="needs paceline[lm]")
        parquet.write_table(arrow.table({"text": texts}), tmp_path / "x.parquet", row_group_size=50)
        asked: list[str | None] = []

        def dataset_info(repository: str, *, revision: str | None, **_: object) -> SimpleNamespace:
            asked.append(revision)
            names = ("README.md", "sample/10BT/000.parquet", "data/CC/0.parquet")
            siblings = [SimpleNamespace(rfilename=n, size=9, lfs=SimpleNamespace(sha256=f"sha of {n}")) for n in names]
            return SimpleNamespace(sha="abc", siblings=siblings)

        system = SimpleNamespace(open=lambda path, mode, **_: (tmp_path / "x.parquet").open(mode))
        library = SimpleNamespace(HfApi=lambda: SimpleNamespace(dataset_info=dataset_info), HfFileSystem=lambda: system)
        monkeypatch.setattr(hub, "_import_hub", lambda: library)
        return asked

    def test_a_sample_is_read_at_one_revision(
        self, fetched: list[str | None], request_: Request, texts: list[str]
    ) -> None:
        streamed = replace(request_, given=())
        done = run(streamed)
        assert done.manifest.source["revision"] == "abc"
        assert [one.name for one in done.manifest.inputs] == ["sample/10BT/000.parquet"]
        found = read_back(request_.out)
        assert Counter(found["train"] + found["validation"]) == Counter(texts)
        assert not run(streamed).is_new
        assert fetched == [None, "abc"]

    def test_without_a_network_it_says_what_to_do(self, request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("connect") from OSError("Name or service not known")

        library = SimpleNamespace(HfApi=lambda: SimpleNamespace(dataset_info=fail))
        monkeypatch.setattr(hub, "_import_hub", lambda: library)
        with pytest.raises(UsageError, match="Name or service not known") as caught:
            run(replace(request_, given=()))
        assert "no network: give --from FILES" in str(caught.value)

    def test_without_the_library_it_names_the_extra(self, request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(UsageError, match="huggingface_hub") as caught:
            run(replace(request_, given=()))
        assert "paceline[lm]" in str(caught.value)
