"""Preparing rows: the columns that a plain reading gives, what is wrong named with its line, and never a part for the whole."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import DataError, OccupiedError, PacelineError, StorageError, UsageError
from paceline.files import Lock
from paceline.recipes.prepared import RECORD
from paceline.recipes.tenrec import csv_input, stored
from paceline.recipes.tenrec.columns import ACTIONS, COLUMNS, HISTORY_COLUMNS
from paceline.recipes.tenrec.data_config import Data
from paceline.recipes.tenrec.generate import Generator, generate
from paceline.recipes.tenrec.opening import open_data
from paceline.recipes.tenrec.prepare import Preparation, prepare
from paceline.recipes.tenrec.request import Request
from paceline.recipes.tenrec.stored import open_table
from paceline.recipes.tenrec.written import write_generated
from tests.recipes.tenrec.rows import Row, draw_rows, first_seen, write_csv

pytestmark = pytest.mark.timeout(60)
pyarrow = pytest.importorskip("pyarrow", reason="needs paceline[tenrec]")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs paceline[tenrec]")


def run(file: Path, out: Path, max_users: int | None = None) -> Preparation:
    return prepare(Request(file, out, max_users), lambda progress: None)


def check_against_rows(out: Path, rows: list[Row]) -> None:
    """Every number of the table, by a plain loop over the rows."""
    table = open_table(out)
    users = first_seen([int(row["user_id"] or 0) for row in rows])
    shown = [[int(row[name] or 0) for name in ("item_id", *HISTORY_COLUMNS)] for row in rows]
    items = {0: 0} | {i: n + 1 for i, n in first_seen([one for row in shown for one in row if one]).items()}
    assert (table.num_rows, table.num_users, table.num_items) == (len(rows), len(users), len(items) - 1)
    assert table.users.name.tolist() == list(users)
    assert table.items.name.tolist() == list(items)
    assert table.user.tolist() == [users[int(row["user_id"] or 0)] for row in rows]
    assert table.item.tolist() == [items[row[0]] for row in shown]
    assert table.history.tolist() == [[items[one] for one in row[1:]] for row in shown]
    assert table.watching.tolist() == [min(int(row["watching_times"] or 0), 65_535) for row in rows]
    assert table.labels(np.arange(len(rows))).tolist() == [[row[name] or 0 for name in ACTIONS] for row in rows]
    for row in rows:
        user, item = users[int(row["user_id"] or 0)], items[int(row["item_id"] or 0)]
        for found, said in ((table.users.gender[user], row["gender"]), (table.users.age[user], row["age"])):
            assert found == (0 if said is None else said + 1)
        assert table.items.category[item] == (0 if row["video_category"] is None else row["video_category"] + 1)
    for name, number in items.items():
        of_item = [row for row in rows if row["item_id"] == name]
        assert table.items.exposures[number] == len(of_item)
        assert table.items.clicks[number] == sum(row["click"] or 0 for row in of_item)
    for name, number in users.items():
        assert table.rows_of(number).tolist() == [at for at, row in enumerate(rows) if row["user_id"] == name]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_column_is_what_a_plain_reading_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(csv_input, "_BLOCK_BYTES", 2000)
    monkeypatch.setattr(stored, "_PIECE", 50)
    rows = draw_rows(300)
    names = ("extra", *reversed(COLUMNS))
    preparation = run(write_csv(tmp_path / "a.csv", rows, names, end), tmp_path / "out")
    check_against_rows(tmp_path / "out", rows)
    counts = preparation.prepared.counts
    assert preparation.is_new
    assert counts["rows_without_history"] == sum(row["hist_1"] == 0 for row in rows) > 0
    had = [row for row in rows if row["item_id"] in [row[name] for name in HISTORY_COLUMNS]]
    assert counts["rows_with_item_in_history"] == len(had) > 0


def test_a_user_that_comes_back_in_a_later_block_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sorted(draw_rows(100), key=lambda row: int(row["user_id"] or 0))
    _, content = write_csv(tmp_path / "a.csv", rows).read_bytes().split(b"\n", 1)
    monkeypatch.setattr(csv_input, "_BLOCK_BYTES", len(content))
    run(write_csv(tmp_path / "a.csv", rows + rows), tmp_path / "out")
    check_against_rows(tmp_path / "out", rows + rows)


def test_a_mark_quotes_blank_lines_and_an_open_end_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_input, "_BLOCK_BYTES", 100)
    rows = draw_rows(30)
    lines = write_csv(tmp_path / "a.csv", rows).read_text().splitlines()
    lines[0] = ",".join(f'"{name}"' for name in COLUMNS)
    (tmp_path / "a.csv").write_bytes(("\ufeff" + "\n".join([*lines[:5], "", *lines[5:], *[""] * 300])).encode())
    run(tmp_path / "a.csv", tmp_path / "out")
    check_against_rows(tmp_path / "out", rows)


def test_parquet_gives_the_same_columns_also_as_text_and_as_floats(tmp_path: Path) -> None:
    rows = draw_rows(300)
    run(write_csv(tmp_path / "a.csv", rows), tmp_path / "csv")
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    text = {name: ["\\N" if value is None else str(value) for value in column] for name, column in columns.items()}
    floats = {name: np.array([np.nan if v is None else v for v in column]) for name, column in columns.items()}
    for number, content in enumerate((columns, text, floats)):
        parquet.write_table(pyarrow.table(content), tmp_path / f"{number}.parquet", row_group_size=70)
        run(tmp_path / f"{number}.parquet", tmp_path / str(number))
        for file in (tmp_path / "csv").glob("*.[ui][1248]"):
            assert (tmp_path / str(number) / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_generated_rows_come_back_from_a_file(tmp_path: Path, ending: str) -> None:
    made = generate(60, 50, 3000, seed=4).table
    write_generated(Generator(60, 50, 3000, 4), tmp_path / f"a.{ending}", lambda progress: None)
    run(tmp_path / f"a.{ending}", tmp_path / "out")
    table = open_table(tmp_path / "out")
    assert np.array_equal(table.users.name[table.user], made.users.name[made.user])
    assert np.array_equal(table.items.name[table.item], made.item)
    assert np.array_equal(table.items.name[table.history], made.history)
    assert np.array_equal(table.actions, made.actions)
    assert np.array_equal(table.watching, made.watching)
    assert np.array_equal(table.users.gender[table.user], made.users.gender[made.user])
    assert np.array_equal(table.items.category[table.item], made.items.category[made.item])
    with pytest.raises(OccupiedError, match="a file stands there"):
        write_generated(Generator(60, 50, 3000, 4), tmp_path / f"a.{ending}", lambda progress: None)


def test_a_part_is_never_taken_for_the_whole(tmp_path: Path) -> None:
    rows = draw_rows(200)
    file = write_csv(tmp_path / "a.csv", rows)
    whole, part = run(file, tmp_path / "whole"), run(file, tmp_path / "part", 4)
    users = list(dict.fromkeys(row["user_id"] for row in rows))[:4]
    check_against_rows(tmp_path / "whole", rows)
    kept = [row for row in rows if row["user_id"] in users]
    assert part.prepared.counts["rows"] == len(kept)
    assert part.prepared.counts["rows_left_out"] == len(rows) - len(kept)
    assert open_table(tmp_path / "part", 4).num_users == open_table(tmp_path / "part", 3).num_users == 4
    for asked in (None, 5):
        with pytest.raises(DataError, match="the first 4 users"):
            open_table(tmp_path / "part", asked)
    assert open_table(tmp_path / "whole", 4).identity == open_table(tmp_path / "whole").identity
    assert open_table(tmp_path / "whole").identity != open_table(tmp_path / "part", 4).identity
    for out, asked in (("whole", 4), ("part", None), ("part", 3)):
        with pytest.raises(OccupiedError, match="--max-users was"):
            run(file, tmp_path / out, asked)
    # More than there are leave nothing out: that is the whole.
    run(file, tmp_path / "all", 1000)
    assert open_table(tmp_path / "all").identity == open_table(tmp_path / "whole").identity
    assert whole.prepared.parameters == {"max_users": None}


BAD = [
    ("item_id", "abc", "item_id is 'abc', which is no whole number"),
    ("click", "1.5", "click is '1.5'"),
    ("click", "2", "click is 2, which is not within 0 … 1"),
    ("item_id", "0", "item_id is 0, which is not within 1 … 134217727"),
    ("user_id", "\\N", "user_id is missing"),
    ("user_id", "-1", "user_id is -1"),
    ("hist_10", "134217728", "hist_10 is 134217728, which is not within"),
    ("hist_3", "99999999999999999999", "hist_3 is 99999999999999999999"),
    ("gender", "255", "gender is 255"),
    ("video_category", "-1", "video_category is -1"),
    ("age", "7,7", "the line has 21 columns, and the header 20"),
]


@pytest.mark.parametrize(("name", "word", "says"), BAD)
def test_what_is_wrong_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, word: str, says: str
) -> None:
    monkeypatch.setattr(csv_input, "_BLOCK_BYTES", 3000)
    file = write_csv(tmp_path / "a.csv", draw_rows(200))
    lines = file.read_text().splitlines()
    fields = lines[150].split(",")
    fields[COLUMNS.index(name)] = word
    lines[150] = ",".join(fields)
    lines.insert(20, "")  # passed over, and counted
    file.write_text("\n".join(lines))
    with pytest.raises(DataError) as caught:
        run(file, tmp_path / "out")
    (problem,) = caught.value.problems
    assert says in problem.what
    assert problem.where == f"{file}:152"
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".prepare.lock"]


@pytest.mark.parametrize(
    ("content", "says", "line"),
    [
        ("", "columns are missing: user_id", ":1"),
        (",".join(COLUMNS[:-1]) + "\n", "a column is missing: hist_10", ":1"),
        (",".join([*COLUMNS, "age"]) + "\n", "twice: age", ":1"),
        (",".join(COLUMNS) + "\n", "no rows", ""),
        (",".join(COLUMNS) + "\n" + "1," * 7, "the line has 8 columns", ":2"),
        ("\xff\xfe", "missing", ":1"),
    ],
)
def test_a_file_that_is_no_table_of_the_schema_is_refused(tmp_path: Path, content: str, says: str, line: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(content)
    with pytest.raises(DataError, match=says) as caught:
        run(file, tmp_path / "out")
    assert caught.value.problems[0].where == f"{file}{line}"


def test_parquet_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    columns = {name: [row[name] for row in draw_rows(400)] for name in COLUMNS}
    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table(columns), file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="no parquet file, or a damaged one"):
        run(file, tmp_path / "out")
    parquet.write_table(pyarrow.table({name: columns[name] for name in COLUMNS if name != "age"}), file)
    with pytest.raises(DataError, match="a column is missing: age"):
        run(file, tmp_path / "out")
    for name, values, says in (
        ("watching_times", [*([1.0] * 333), 1.5, *([1.0] * 66)], "watching_times is 1.5, which is no whole number"),
        ("like", [*(["1"] * 333), "x", *(["\\N"] * 66)], "like is 'x', which is no whole number"),
        ("item_id", [*([1] * 333), -4, *([1] * 66)], "item_id is -4"),
        ("user_id", [*([1] * 333), None, *([1] * 66)], "user_id is missing"),
    ):
        parquet.write_table(pyarrow.table(columns | {name: values}), file, row_group_size=100)
        with pytest.raises(DataError, match=says) as caught:
            run(file, tmp_path / "out")
        assert caught.value.problems[0].where == f"{file}, row 334"


def test_a_flipped_bit_in_any_file_is_found_and_made_good(tmp_path: Path) -> None:
    file, out = write_csv(tmp_path / "a.csv", draw_rows(200)), tmp_path / "out"
    names = sorted(run(file, out).prepared.files)
    assert len(names) == 14
    assert not run(file, out).is_new
    for name in names:
        whole = (out / name).read_bytes()
        (out / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(DataError, match=f"damaged: {name} is not as it was written"):
            open_table(out)
        preparation = run(file, out)
        assert (preparation.is_new, preparation.notes) == (True, [f"made again: {name} is not as it was written"])
        assert (out / name).read_bytes() == whole
    (out / names[0]).write_bytes(b"")
    with pytest.raises(DataError, match="is of 0 bytes"):
        open_table(out, is_verified=False)
    (out / names[0]).unlink()
    with pytest.raises(DataError, match="is missing"):
        open_table(out)
    run(file, out)
    check_against_rows(out, draw_rows(200))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 0}, "version 0 of the preparation made this, and this program reads version 1"),
        ({"family": "movielens"}, "holds movielens impressions"),
        ({"v": 7}, "cannot be understood"),
    ],
)
def test_a_directory_of_another_kind_or_version_is_refused(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    file, out = write_csv(tmp_path / "a.csv", draw_rows(50)), tmp_path / "out"
    run(file, out)
    record = json.loads((out / RECORD).read_text())
    del record["seal"]
    (out / RECORD).write_text(json.dumps(record | change))
    with pytest.raises(DataError, match=says):
        open_table(out)
    if "version" in change:
        assert run(file, out).notes == ["made again: version 0 of this step made it, this is 1"]


def test_a_changed_letter_of_the_record_is_found(tmp_path: Path) -> None:
    file, out = write_csv(tmp_path / "a.csv", draw_rows(50)), tmp_path / "out"
    run(file, out, 3)
    text = (out / RECORD).read_text()
    assert '"users": 3' in text
    (out / RECORD).write_text(text.replace('"users": 3', '"users": 7'))
    with pytest.raises(DataError, match="cannot be understood"):
        open_table(out, 7)
    run(file, out, 3)
    assert (out / RECORD).read_text() == text


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, says in (("nowhere", "does not exist"), ("file", "a file was given"), (".", "no prepared directory")):
        with pytest.raises(DataError, match=says) as caught:
            open_table(tmp_path / path)
        option = "input" if path == "file" else "output"
        assert "paceline prepare tenrec" in caught.value.problems[0].do
        assert f"--{option} {tmp_path / path}" in caught.value.problems[0].do


def test_other_rows_are_never_written_over_a_directory(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(write_csv(tmp_path / "a.csv", draw_rows(50)), out)
    before = (out / "item.u4").read_bytes()
    other = write_csv(tmp_path / "b.csv", draw_rows(50, seed=1))
    with pytest.raises(OccupiedError, match="prepared from other data"):
        run(other, out)
    # Damaged, too.
    (out / "item.u4").write_bytes(b"")
    with pytest.raises(OccupiedError, match="prepared from other data"):
        run(other, out)
    assert not run(write_csv(tmp_path / "c.csv", draw_rows(50)), tmp_path / "new").notes
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "item.u4").write_text("mine")
    with pytest.raises(OccupiedError, match="a file stands in the way"):
        run(other, tmp_path / "taken")
    assert (tmp_path / "taken" / "item.u4").read_text() == "mine"
    assert len(before) == 200


KILLED = """
import os, signal, sys
from pathlib import Path
from paceline.recipes.tenrec import csv_input
from paceline.recipes.tenrec.prepare import prepare
from paceline.recipes.tenrec.request import Request

csv_input._BLOCK_BYTES = 4000
left = int(sys.argv[3])
replace = os.replace

def count(*_):
    global left
    left -= 1
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)

def replace_and_count(*arguments):
    replace(*arguments)
    count()

os.replace = replace_and_count
prepare(Request(Path(sys.argv[1]), Path(sys.argv[2])), count)
"""


@pytest.mark.parametrize("moment", [2, 12, 20])
def test_killed_it_begins_anew_and_ends_with_the_same_bytes(tmp_path: Path, moment: int) -> None:
    """In the middle of the rows, and in the middle of putting files in their places."""
    file, out = write_csv(tmp_path / "a.csv", draw_rows(300)), tmp_path / "out"
    words = [sys.executable, "-c", KILLED, str(file), str(out), str(moment)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(out.iterdir()) != []
    with pytest.raises(DataError, match="its preparation did not end"):
        open_table(out)
    run(file, out)
    run(file, tmp_path / "other")
    assert sorted(os.listdir(out)) == sorted(os.listdir(tmp_path / "other"))
    check_against_rows(out, draw_rows(300))


def test_two_preparations_of_one_directory_do_not_meet(tmp_path: Path) -> None:
    file, out = write_csv(tmp_path / "a.csv", draw_rows(50)), tmp_path / "out"
    out.mkdir()
    lock = Lock(out / ".prepare.lock")
    assert lock.acquire()
    with pytest.raises(OccupiedError, match="being prepared there already"):
        run(file, out)
    lock.release()
    assert run(file, out).is_new


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file, out = write_csv(tmp_path / "a.csv", draw_rows(50)), tmp_path / "out"
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="the disk is full"):
        run(file, out)
    assert [path.name for path in out.iterdir()] == [".prepare.lock"]


def test_what_cannot_be_asked_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = Request(write_csv(tmp_path / "a.csv", draw_rows(5)), tmp_path / "out")
    (tmp_path / "d.csv").mkdir()
    wrong: list[tuple[Request, type[PacelineError], str]] = [
        (replace(good, input=tmp_path / "a.txt"), UsageError, "neither with .csv nor with .parquet"),
        (replace(good, input=tmp_path / "b.csv"), DataError, "does not exist"),
        (replace(good, input=tmp_path / "d.csv"), DataError, "no file"),
        (replace(good, max_users=0), UsageError, "no number of users"),
    ]
    for request, kind, says in wrong:
        with pytest.raises(kind, match=says):
            prepare(request, lambda progress: None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    with pytest.raises(UsageError, match="needs the package pyarrow") as caught:
        prepare(good, lambda progress: None)
    assert caught.value.problems[0].do == "pip install 'paceline[tenrec]'"


def test_what_rows_say_differently_of_one_user_is_counted(tmp_path: Path) -> None:
    rows = draw_rows(40, users=2)
    for row in rows:
        row["age"] = 1
    mine = [row for row in rows if row["user_id"] == rows[0]["user_id"]]
    mine[0]["age"], mine[1]["age"] = None, 5
    counts = run(write_csv(tmp_path / "a.csv", rows), tmp_path / "out").prepared.counts
    assert counts["rows_of_another_gender_or_age"] == len(mine) - 2
    assert open_table(tmp_path / "out").users.age.tolist() == [6, 2]
    assert counts["actions_not_said"] == 0
    rows[3]["like"] = None
    assert run(write_csv(tmp_path / "b.csv", rows), tmp_path / "b").prepared.counts["actions_not_said"] == 1


PEAK = """
import resource, sys
from pathlib import Path
from paceline.recipes.tenrec.prepare import prepare
from paceline.recipes.tenrec.request import Request

prepare(Request(Path(sys.argv[1]), Path(sys.argv[2])), lambda progress: None)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_rows(tmp_path: Path) -> None:
    peaks = []
    for rows in (800_000, 3_200_000):
        file = tmp_path / f"{rows}.csv"
        write_generated(Generator(5000, 1000, rows, 0), file, lambda progress: None)
        words = [sys.executable, "-c", PEAK, str(file), str(tmp_path / str(rows))]
        done = subprocess.run(words, capture_output=True, text=True, timeout=50, check=True)
        peaks.append(int(done.stdout) // 1024)
    # In memory the columns alone would take 120 MiB more.
    assert peaks[1] - peaks[0] < 40, peaks


def test_rows_of_one_item_leave_nothing_to_learn(tmp_path: Path) -> None:
    rows = [row | dict.fromkeys(("item_id", *HISTORY_COLUMNS), 7) for row in draw_rows(200)]
    run(write_csv(tmp_path / "a.csv", rows), tmp_path / "out")
    with pytest.raises(DataError, match="all rows are of one item"):
        open_data(Data(path=str(tmp_path / "out")))
