from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli import prepare_movielens
from paceline.cli.main import run_command
from paceline.errors import UsageError

RATINGS = "1::1193::5::978300760\n1::661::3::978302109\n2::1193::4::978298413\n"


@pytest.fixture
def ratings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ratings.dat").write_text(RATINGS)
    (tmp_path / "movies.dat").write_text("1193::Heat (1995)::Action\n")
    return tmp_path / "ratings.dat"


def test_the_last_line_says_what_to_type_next(ratings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["prepare", "movielens", "--from", "ratings.dat"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "not the whole ml-1m: 3 ratings, published 1,000,209",
        "ml-1m: 3 ratings of 2 items by 2 users, 2000-12-31 to 2000-12-31",
        "wrote ml-1m.inter, ml-1m.item, prepared.json in data/ml-1m",
        "next: paceline train sasrec-ml-1m data.path=data/ml-1m/ml-1m.inter",
    ]
    assert json.loads(Path("data/ml-1m/prepared.json").read_text())["counts"]["events"] == 3
    assert run_command(["prepare", "movielens", "ml-1m", "--from", "ratings.dat"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2].startswith("nothing to do, already there: ml-1m.inter")
    assert shown[-1].startswith("next: paceline train")


def test_a_place_with_a_blank_can_be_pasted(ratings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["prepare", "movielens", "--from", "ratings.dat", "--out", "my data"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "next: paceline train sasrec-ml-1m data.path='my data/ml-1m.inter'"


def test_what_is_prepared_can_be_explained_as_a_job(ratings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["prepare", "movielens", "--from", "ratings.dat"]) == 0
    path = capsys.readouterr().out.splitlines()[-1].rpartition(" ")[2]
    assert run_command(["explain", "sasrec", path, "--no-sizes"]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["movilens"], "paceline prepare movielens"),
        (["movielens", "ml-10k"], "paceline prepare movielens ml-100k"),
        (["movielens", "--from", "a.zip", "--url", "https://x/y"], "two sources"),
        (["movielens", "--form", "a.zip"], "--from"),
        (["movielens", "--from", "nowhere.zip"], "no such file"),
        (["movielens", "--from", "times.txt"], "no timestamps"),
        (["movielens", "--from", "ratings.dat", "--out", "ratings.dat/x"], "--out DIR"),
    ],
)
def test_mistakes(ratings: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    Path("times.txt").write_text("1 1\n")
    assert run_command(["prepare", *words]) == 2
    assert says in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["movies.dat", "ratings.dat", "times.txt"]


def test_the_group_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["prepare", "--help"]) == 0
    assert "movielens" in capsys.readouterr().out.partition("Commands:")[2]
    assert run_command(["prepare", "movielens", "--help"]) == 0
    assert "Usage: paceline prepare movielens" in capsys.readouterr().out


def test_without_a_network_it_says_what_to_do(
    ratings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert run_command(["prepare", "movielens", "ml-100k", "--url", "http://127.0.0.1:1/ml-100k.zip"]) == 2
    error = capsys.readouterr().err
    assert "the download failed" in error
    assert "https://files.grouplens.org/datasets/movielens/ml-100k.zip" in error
    assert "paceline prepare movielens ml-100k --from ml-100k.zip" in error


def test_ctrl_c_says_how_to_go_on(
    ratings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare_movielens, "prepare", interrupt)
    assert run_command(["prepare", "movielens"]) == 130
    assert "type the same again" in capsys.readouterr().err


def test_on_a_terminal_the_progress_is_shown(
    ratings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: object, given: object, out: object, url: object, report: prepare_movielens.Report) -> None:
        report(10, 100)
        report(100, None)
        raise UsageError("no more")

    monkeypatch.setattr(prepare_movielens, "prepare", fail)
    monkeypatch.setenv("TERM", "xterm")
    for is_terminal in (True, False):
        monkeypatch.setattr("sys.stderr.isatty", lambda is_terminal=is_terminal: is_terminal)
        assert run_command(["prepare", "movielens"]) == 2
        error = capsys.readouterr().err
        assert "no more" in error
        assert ("downloading" in error) == is_terminal
