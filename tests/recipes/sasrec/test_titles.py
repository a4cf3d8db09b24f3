from __future__ import annotations

from pathlib import Path

import pytest

from paceline.recipes.sasrec.titles import read_titles


def write(folder: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "-").replace("_", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


INTER = "user_id:token\titem_id:token\n1\t2\n"


@pytest.mark.parametrize(
    ("interactions", "files", "expected"),
    [
        (
            "a.inter",
            {"a_inter": INTER, "a_item": "title:token_seq\titem_id:token\nÉté (1995)\t2\nB C\t x-1\r\n\n"},
            {"2": "Été (1995)", "x-1": "B C"},
        ),
        (
            "a.inter",
            {"a_inter": INTER, "a_item": "item_id:token\tmovie_title:token_seq\tyear:float\n2\tToy Story\t1995\n"},
            {"2": "Toy Story"},
        ),
        (
            "ratings.dat",
            {
                "ratings_dat": "1::2::3::4\n",
                "movies_dat": "2::Été (1995)::Drama|War\n3::A::B::C\n".encode("latin-1"),
            },
            {"2": "Été (1995)", "3": "A::B"},
        ),
        (
            "ratings.csv",
            {
                "ratings_csv": "userId,movieId,rating,timestamp\n1,2,3,4\n",
                "movies_csv": '\ufeffmovieId,title,genres\r\n2,"American President, The (1995)",Drama\r\n3,Heat,x\r\n',
            },
            {"2": "American President, The (1995)", "3": "Heat"},
        ),
        (
            "u.data",
            {"u_data": "1\t2\t3\t881250949\n", "u_item": "2|GoldenEye\x85 (1995)|01-Jan-1995||\n".encode("latin-1")},
            {"2": "GoldenEye\x85 (1995)"},
        ),
    ],
    ids=["item", "recbole", "dat", "csv", "u.item"],
)
def test_titles_beside_the_interactions(
    tmp_path: Path, interactions: str, files: dict[str, str | bytes], expected: dict[str, str]
) -> None:
    write(tmp_path, **files)
    titles = read_titles(tmp_path / interactions)
    assert titles == expected
    assert titles.problem == ""


def test_where_there_are_none(tmp_path: Path) -> None:
    write(tmp_path, a_inter=INTER)
    assert read_titles(str(tmp_path / "a.inter")) == {}
    assert read_titles(str(tmp_path / "a.inter")).problem == ""


def test_a_text_file_takes_no_titles_of_another_numbering(tmp_path: Path) -> None:
    write(tmp_path, a_txt="1 2\n", a_item="item_id:token\ttitle:token_seq\n2\tWrong\n")
    assert read_titles(tmp_path / "a.txt") == {}


def test_the_format_asked_for_decides(tmp_path: Path) -> None:
    write(tmp_path, a_txt=INTER, a_item="item_id:token\ttitle:token_seq\n2\tRight\n")
    assert read_titles(tmp_path / "a.txt", "inter") == {"2": "Right"}


@pytest.mark.parametrize(
    ("files", "expected", "problem"),
    [
        (
            {"a_item": "item_id:token\ttitle:token_seq\n1\tA\nbroken\n2\tB\n3\tC\tD\n"},
            {"1": "A", "2": "B"},
            "2 of 4 titles cannot be read, the first at {folder}/a.item:3",
        ),
        ({"a_item": "1\tA\n"}, {}, "no column item_id or title"),
        ({"a_item": ""}, {}, "no column item_id or title"),
        ({"a_item": b"\0\xff\xfe\0"}, {}, "no column item_id or title"),
    ],
)
def test_a_damaged_file_gives_what_can_be_read(
    tmp_path: Path, files: dict[str, str | bytes], expected: dict[str, str], problem: str
) -> None:
    write(tmp_path, a_inter=INTER, **files)
    titles = read_titles(tmp_path / "a.inter")
    assert titles == expected
    assert problem.format(folder=tmp_path) in titles.problem


def test_damaged_movies(tmp_path: Path) -> None:
    write(tmp_path, ratings_dat="1::2::3::4\n", movies_dat="2::A::x\n3::\n4\n")
    titles = read_titles(tmp_path / "ratings.dat")
    assert titles == {"2": "A"}
    assert "2 of 3 titles" in titles.problem
    write(tmp_path, ratings_csv="userId,movieId\n1,2\n", movies_csv="movieId,name\n2,A\n")
    assert "no column movieId or title" in read_titles(tmp_path / "ratings.csv").problem
    write(tmp_path, ratings_csv="userId,movieId\n1,2\n", movies_csv="movieId,title\n2,A\n3\n")
    titles = read_titles(tmp_path / "ratings.csv")
    assert titles == {"2": "A"}
    assert "1 of 2 titles cannot be read" in titles.problem


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    write(tmp_path, a_inter=INTER)
    (tmp_path / "a.item").mkdir()
    assert "cannot be read (Is a directory)" in read_titles(tmp_path / "a.inter").problem
