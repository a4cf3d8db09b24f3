import os

import pytest

from paceline.errors import DataError
from paceline.recipes.sasrec.source import detect_format, find_file, identify_file


def test_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "ratings.dat").write_text("1::2::3::4\n")
    with pytest.raises(DataError) as error:
        find_file(str(tmp_path / "rating.dat"))
    assert error.value.exit_code == 2
    assert str(tmp_path / "ratings.dat") in error.value.problems[0].do


def test_directory_names_a_file_inside(tmp_path):
    for name in ("movies.dat", "ratings.dat", "users.dat"):
        (tmp_path / name).write_text("1::2::3::4\n")
    with pytest.raises(DataError, match="directory") as error:
        find_file(str(tmp_path))
    assert "ratings.dat" in error.value.problems[0].do


def test_the_folder_of_ml_100k_names_its_ratings(tmp_path):
    for name in ("README.txt", "u.data", "u.item"):
        (tmp_path / name).write_text("x\n")
    with pytest.raises(DataError, match="directory") as error:
        find_file(str(tmp_path))
    assert str(tmp_path / "u.data") in error.value.problems[0].do


def test_empty_file_is_refused(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(DataError, match="empty"):
        find_file(str(tmp_path / "a.txt"))


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="regular"):
        find_file(str(tmp_path / "pipe"))


def test_a_file_below_a_file_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("1 2\n")
    with pytest.raises(DataError, match="cannot be reached"):
        find_file(str(tmp_path / "a.txt" / "b.txt"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("1 2\n")
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(DataError, match="may not be read"):
        find_file(str(tmp_path / "a.txt"))


@pytest.mark.parametrize(
    ("name", "first", "expected"),
    [
        ("a.inter", "x", "inter"),
        ("a.txt", "user_id:token\titem_id:token", "inter"),
        ("a.dat", "1::2::3::4", "movielens"),
        ("a.txt", "userId,movieId,rating,timestamp", "movielens"),
        ("a.csv", "1 2", "movielens"),
        ("a.txt", "1 2 3", "text"),
        ("a", "1\t2", "text"),
        ("u.data", "196\t242\t3\t881250949", "movielens"),
        ("u.data", "1\t2\t\t3", "text"),
        ("a.txt", "\n\r\n1::2::3::4", "movielens"),
        ("a.txt", "\ufeffuser_id:token\titem_id:token", "inter"),
    ],
)
def test_format_is_detected(tmp_path, name, first, expected):
    (tmp_path / name).write_text(first + "\n")
    assert detect_format(tmp_path / name, "auto") == expected
    assert detect_format(tmp_path / name, "text") == "text"


def test_identity_is_the_content_not_the_place(tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("1 2\n")
    second.write_text("1 2\n")
    assert identify_file(str(first), "auto") == identify_file(str(second), "text")
    second.write_text("1 3\n")
    assert identify_file(str(first), "auto") != identify_file(str(second), "auto")
