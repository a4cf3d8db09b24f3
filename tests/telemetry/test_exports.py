from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from paceline.errors import CheckpointError, OccupiedError, UsageError
from paceline.telemetry import exports
from paceline.telemetry.exports import CONFIG, RECORD, WEIGHTS, Export, building_export, read_export, write_export

EXPORT = Export("toy", 7, "0123", "step_00000007", "0.1", "2.13", "ab", 12, {"fingerprint": "a", "values": {}})


def write(target: Path, text: str) -> None:
    with building_export(target) as directory:
        assert directory.parent == target.parent
        assert directory.name.startswith(".")
        (directory / WEIGHTS).write_text(text)
        (directory / CONFIG).write_text("recipe: toy")
        write_export(directory, EXPORT)


def test_it_is_there_whole_and_alone(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "export"
    write(target, "weights")
    assert sorted(os.listdir(target)) == sorted((WEIGHTS, CONFIG, RECORD))
    assert os.listdir(target.parent) == ["export"]
    assert read_export(target) == EXPORT


def test_an_earlier_one_is_replaced_and_never_mixed(tmp_path: Path) -> None:
    target = tmp_path / "export"
    write(target, "first")
    with building_export(target) as directory:
        write_export(directory, EXPORT)
        assert (target / WEIGHTS).read_text() == "first"
    assert os.listdir(target) == [RECORD]
    assert os.listdir(tmp_path) == ["export"]


def test_what_fails_leaves_nothing_behind_and_the_earlier_one_in_place(tmp_path: Path) -> None:
    target = tmp_path / "export"
    write(target, "first")

    def interrupt() -> None:
        with building_export(target) as directory:
            (directory / WEIGHTS).write_text("second")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert (target / WEIGHTS).read_text() == "first"
    assert os.listdir(tmp_path) == ["export"]


def test_the_earlier_one_comes_back_if_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "export"
    write(target, "first")
    rename = os.rename

    def refuse(source: Path, to: Path) -> None:
        if to == target and not str(source).endswith(".earlier"):
            raise OSError("no")
        rename(source, to)

    monkeypatch.setattr(exports.os, "rename", refuse)
    with pytest.raises(OSError, match="no"):
        write(target, "second")
    assert (target / WEIGHTS).read_text() == "first"
    assert os.listdir(tmp_path) == ["export"]


@pytest.mark.parametrize("names", [["thesis.tex"], [RECORD, "notes.txt"], [WEIGHTS]])
def test_a_directory_with_anything_else_is_refused(tmp_path: Path, names: list[str]) -> None:
    target = tmp_path / "export"
    target.mkdir()
    for name in names:
        (target / name).write_text("mine")
    with pytest.raises(OccupiedError, match=next(name for name in names if name != RECORD)):
        write(target, "weights")
    assert sorted(os.listdir(target)) == sorted(names)


def test_a_file_is_refused_and_an_empty_directory_is_fine(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OccupiedError):
        write(tmp_path / "file", "weights")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", "weights")
    assert read_export(tmp_path / "empty").step == 7


@pytest.mark.parametrize("text", ["", "[]", "3", '{"v": 1}', '{"v": 1, "step": 3, "recipe": "x"}', "[" * 100_000])
def test_what_is_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(CheckpointError, match="damaged"):
        read_export(tmp_path)


def test_a_newer_one_is_refused_and_new_fields_are_not(tmp_path: Path) -> None:
    write(tmp_path / "export", "weights")
    record = json.loads((tmp_path / "export" / RECORD).read_text())
    (tmp_path / "export" / RECORD).write_text(json.dumps(record | {"color": "red"}))
    assert read_export(tmp_path / "export") == EXPORT
    (tmp_path / "export" / RECORD).write_text(json.dumps(record | {"v": 2}))
    with pytest.raises(UsageError, match="newer"):
        read_export(tmp_path / "export")
