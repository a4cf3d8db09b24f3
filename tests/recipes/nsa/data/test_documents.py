from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from paceline.errors import DataError, UsageError
from paceline.recipes.nsa.data import documents
from paceline.recipes.nsa.data.documents import Found, local_origin, read_documents


def read(path: Path, offset: int = 0, number: int = 0, field: str = "text") -> list[Found]:
    return list(read_documents(local_origin(path), field, offset, number))


def test_lines_of_json_one_document_each(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        '\ufeff{"text": "one"}\r\n\n{"text": "zwei – 2", "id": 3}\n{"text": null}\n{"text": "last"}'.encode()
    )
    found = read(path)
    assert [one.text for one in found] == ["one", "zwei – 2", "", "last"]
    assert [one.where for one in found] == [f"{path}:{line}" for line in (1, 3, 4, 5)]


@pytest.mark.parametrize("start", range(4))
def test_reading_goes_on_from_any_place(tmp_path: Path, start: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "{name}"}}\n' for name in ("one", "two", "three", "four", "five")))
    whole = read(path)
    assert read(path, whole[start].offset, whole[start].number) == whole[start + 1 :]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"not json", "no JSON"),
        (b'{"text": "torn', "no JSON"),
        (b"[1, 2]", "no JSON object"),
        (b'{"body": "x"}', r"no field 'text' \(it has: body\)"),
        (b'{"text": 3}', "holds no text, but int"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b'{"text": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_a_line_that_is_no_document_has_a_fault_with_its_place(tmp_path: Path, line: bytes, says: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\n' + line + b'\n{"text": "three"}\n')
    first, bad, last = read(path)
    assert (first.text, bad.text, last.text) == ("one", None, "three")
    assert bad.where == f"{path}:2"
    assert re.search(says, bad.fault)


def test_a_torn_end_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "tw')
    assert "ends in the middle" in read(tmp_path / "a.jsonl")[1].fault


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_LONGEST_LINE", 100)
    (tmp_path / "a.jsonl").write_bytes(b"x" * 200)
    with pytest.raises(DataError, match="more than 100 bytes") as caught:
        read(tmp_path / "a.jsonl")
    assert "a.jsonl:1" in str(caught.value)


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\n\ntwo\n")
    assert [one.text for one in read(path)] == ["one\n\ntwo\n"]
    path.write_bytes(b"")
    assert read(path) == []


def test_a_long_one_is_cut_where_text_may_be_cut_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PIECE_BYTES", 64)
    path = tmp_path / "a.txt"
    for text in (
        "ein Absatz mit Wörtern\n\n" * 20,
        "eine Zeile mit Wörtern\n" * 20,
        "Wörter ohne Zeilen " * 20,
        "ü" * 200,
        "a" + "日本" * 100,
        "🙂" * 100,
    ):
        path.write_bytes(text.encode())
        found = read(path)
        assert "".join(one.text or "" for one in found) == text
        assert not any(one.fault for one in found)
        assert max(len((one.text or "").encode()) for one in found) <= 64
        assert read(path, found[2].offset, found[2].number) == found[3:]
    path.write_bytes(("ein Absatz mit Wörtern\n\n" * 20).encode())
    assert all((one.text or "").endswith("\n\n") for one in read(path))


@pytest.mark.parametrize(("length", "pieces"), [(63, 1), (64, 1), (65, 2)])
def test_only_what_is_longer_than_a_piece_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, pieces: int
) -> None:
    monkeypatch.setattr(documents, "PIECE_BYTES", 64)
    path = tmp_path / "a.txt"
    text = ("one line\n" * 10)[: length - 1] + "."
    path.write_text(text)
    found = read(path)
    assert len(found) == pieces
    assert "".join(one.text or "" for one in found) == text


@pytest.mark.parametrize(
    ("content", "says"), [(b"ab\xffcd", r"not UTF-8 text \(byte 3\)"), (b"a\0b", r"NUL bytes.*byte 2")]
)
def test_what_is_no_text_has_a_fault(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    (found,) = read(tmp_path / "a.txt")
    assert found.text is None
    assert re.search(says, found.fault)


def test_parquet_without_the_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match="pyarrow") as caught:
        read(tmp_path / "a.parquet")
    assert "paceline[lm]" in str(caught.value)


class TestParquet:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        arrow = pytest.importorskip("pyarrow", reason="needs paceline[lm]")
        parquet = pytest.importorskip("pyarrow.parquet", reason="needs paceline[lm]")
        texts = [f"document {number} – ü" for number in range(20)]
        table = arrow.table({"text": [*texts[:7], None, *texts[8:]], "id": list(range(20))})
        parquet.write_table(table, tmp_path / "a.parquet", row_group_size=6)
        return tmp_path / "a.parquet"

    def test_every_row_is_a_document(self, path: Path) -> None:
        found = read(path)
        assert [one.text for one in found[6:9]] == ["document 6 – ü", "", "document 8 – ü"]
        assert (len(found), found[6].where) == (20, f"{path}, row 7")

    @pytest.mark.parametrize("start", [0, 5, 6, 12, 19])
    def test_reading_goes_on_from_any_row(self, path: Path, start: int) -> None:
        whole = read(path)
        assert read(path, whole[start].offset, whole[start].number) == whole[start + 1 :]

    def test_a_column_that_is_not_there_or_no_text_is_refused(self, path: Path) -> None:
        with pytest.raises(DataError, match=r"no column 'body' \(there are: text, id\)"):
            read(path, field="body")
        with pytest.raises(DataError, match="holds no text, but int64"):
            read(path, field="id")

    @pytest.mark.parametrize("keep", [0, 3, 100, -5])
    def test_a_truncated_file_is_refused_by_name(self, path: Path, keep: int) -> None:
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(DataError, match=r"damaged") as caught:
            read(path)
        assert "a.parquet" in str(caught.value)
