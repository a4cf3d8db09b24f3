from __future__ import annotations

import gc
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline.cli.main import run_command
from paceline.recipes.tenrec import csv_input, prepare

pytest.importorskip("pyarrow", reason="needs paceline[tenrec]")
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_rows_are_generated_prepared_and_found_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run_command(
            ["prepare", "tenrec", "--generate", "4e3", "--users", "50", "--items", "40", "--output", "in/a.csv"]
        )
        == 0
    )
    assert capsys.readouterr().out.splitlines() == [
        "wrote 4,000 rows of 50 users and 40 items: in/a.csv",
        "next: paceline prepare tenrec --input in/a.csv --output data/tenrec",
    ]
    assert Path("in/a.csv").read_text().startswith("user_id,item_id,click,follow,like,share,video_category,")
    assert os.listdir("in") == ["a.csv"]
    words = ["prepare", "tenrec", "--input", "in/a.csv", "--output", "my rows", "--max-users", "20"]
    assert run_command(words) == 0
    shown = capsys.readouterr().out.splitlines()
    assert " rows of 20 users and 40 items, " in shown[0]
    assert shown[1].startswith("left out: ")
    assert shown[-2].startswith("wrote 14 columns, ")
    assert shown[-1] == "next: paceline train tenrec data.path='my rows' data.max_users=20"
    assert run_command(words) == 0
    again = capsys.readouterr().out.splitlines()
    assert again[-2].startswith("nothing to do, verified: 14 columns")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--output a", "neither --input nor --generate"),
        ("--input a.csv --generate 10 --output a", "two sources"),
        ("--input nowhere.csv --output a", "does not exist"),
        ("--input nowhere.txt --output a", "neither with .csv nor with .parquet"),
        ("--input a.csv --users 4 --output a", "--users is of generated rows"),
        ("--generate 10 --max-users 4 --output a.csv", "--users N"),
        ("--generate 10.5 --output a.csv", "no number from 1"),
        ("--generate 10 --output a", "neither with .csv nor with .parquet"),
        ("--generate 10 --seed -1 --output a.csv", "negative"),
        ("--input a.csv --max-users 0 --output a", "no number from 1"),
        ("--input a.csv", "--output"),
    ],
)
def test_what_cannot_be_asked_for_ends_with_words(capsys: pytest.CaptureFixture[str], words: str, says: str) -> None:
    assert run_command(["prepare", "tenrec", *words.split()]) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert "Traceback" not in shown
    assert os.listdir() == []


def test_without_pyarrow_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyarrow", "pyarrow.csv", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    assert run_command(["prepare", "tenrec", "--generate", "10", "--output", "a.parquet"]) == 2
    assert "pip install 'paceline[tenrec]'" in capsys.readouterr().err


def test_ctrl_c_leaves_nothing_and_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.recipes.tenrec.generate._roll_histories", interrupt)
    assert run_command(["prepare", "tenrec", "--generate", "10", "--output", "a.csv"]) == 130
    assert "type the same again" in capsys.readouterr().err
    assert os.listdir() == []


def test_a_second_ctrl_c_while_the_first_one_ends_its_threads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_command(["prepare", "tenrec", "--generate", "4e3", "--users", "50", "--items", "40", "--output", "a.csv"])

    class Impatient(ThreadPoolExecutor):
        def shutdown(self, *arguments: object, **options: object) -> None:
            super().shutdown()
            raise KeyboardInterrupt

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    lost: list[object] = []
    monkeypatch.setattr(csv_input, "ThreadPoolExecutor", Impatient)
    monkeypatch.setattr(prepare._Rows, "add", interrupt)
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    assert run_command(["prepare", "tenrec", "--input", "a.csv", "--output", "rows"]) == 130
    gc.collect()
    assert "type the same again" in capsys.readouterr().err
    assert lost == []
