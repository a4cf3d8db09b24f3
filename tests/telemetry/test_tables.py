"""Tables: floats come back as they were, torn rows are passed over, another header is refused."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path

import pytest

from paceline.errors import OccupiedError
from paceline.telemetry.tables import METRICS_COLUMNS, Table, find_damaged_lines, parse_rows, read_table

COLUMNS = ("attempt", "step", "loss", "split")


def some_floats() -> list[float]:
    drawn = random.Random(7)
    return [
        0.1 + 0.2,
        1e-323,
        1.7976931348623157e308,
        -0.0,
        3.0,
        1e16,
        *(struct.unpack("<d", drawn.randbytes(8))[0] for _ in range(500)),
        *(drawn.gauss(0, 1) for _ in range(100)),
    ]


def test_floats_read_back_to_the_same_float(tmp_path: Path) -> None:
    values = [value for value in some_floats() if not math.isnan(value)]
    table = Table(tmp_path / "a.csv", COLUMNS)
    for step, value in enumerate(values):
        table.write({"attempt": 1, "step": step, "loss": value})
    table.close()
    found = [row["loss"] for row in read_table(tmp_path / "a.csv")]
    assert [struct.pack("<d", value) for value in found] == [struct.pack("<d", value) for value in values]


def test_numbers_text_and_unknown_values(tmp_path: Path) -> None:
    table = Table(tmp_path / "a.csv", COLUMNS)
    table.write({"attempt": 1, "step": 20, "loss": float("nan"), "split": 'a, "b"'})
    table.write({"attempt": 1, "step": 30, "split": "test"})
    table.close()
    first, second = read_table(tmp_path / "a.csv")
    assert math.isnan(first.pop("loss"))
    assert first == {"attempt": 1, "step": 20, "split": 'a, "b"'}
    assert second == {"attempt": 1, "step": 30, "loss": None, "split": "test"}
    assert type(second["step"]) is int


def test_a_second_attempt_appends_under_the_same_header(tmp_path: Path) -> None:
    for attempt in (1, 2):
        table = Table(tmp_path / "a.csv", COLUMNS)
        table.write({"attempt": attempt, "step": 1})
        table.close()
    assert (tmp_path / "a.csv").read_text().splitlines() == ["attempt,step,loss,split", "1,1,,", "2,1,,"]


def test_another_header_is_refused_with_both(tmp_path: Path) -> None:
    Table(tmp_path / "a.csv", COLUMNS).close()
    with pytest.raises(OccupiedError, match=r"a\.csv has other columns") as caught:
        Table(tmp_path / "a.csv", (*COLUMNS, "auc"))
    assert "attempt, step, loss, split" in caught.value.problems[0].where
    assert (tmp_path / "a.csv").read_text() == "attempt,step,loss,split\n"


@pytest.mark.parametrize("torn", ["2,2", "2,2,0.5,tes", "2", '2,2,0.5,"x'])
def test_a_torn_row_is_passed_over_and_closed_off(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("attempt,step,loss,split\n1,1,0.5,test\n" + torn)
    assert [row["step"] for row in read_table(path)] == [1]
    table = Table(path, COLUMNS)
    table.write({"attempt": 3, "step": 3, "loss": 1.5, "split": "test"})
    table.close()
    assert read_table(path)[-1] == {"attempt": 3, "step": 3, "loss": 1.5, "split": "test"}


def test_a_garbled_line_is_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = ["1,1,0.5,test", "1,2\r,0.5,test", "", '1,3,0.5,"a, b"', "1,x,0.5,test", "1,4", "1,5,0.5,test\r", "1,6,"]
    path.write_bytes("\n".join([",".join(COLUMNS), *lines]).encode() + b"\xff")
    assert [row["step"] for row in read_table(path) if row["step"] != "x"] == [1, 3, 5]
    assert find_damaged_lines(path) == [3, 6, 7, 9]
    path.write_text(",".join(COLUMNS))
    assert find_damaged_lines(path) == [1]


def test_nothing_to_read(tmp_path: Path) -> None:
    assert read_table(tmp_path / "a.csv") == []
    (tmp_path / "a.csv").write_text("")
    assert read_table(tmp_path / "a.csv") == []
    assert parse_rows([], []) == []


def test_a_column_that_is_not_there_is_our_mistake(tmp_path: Path) -> None:
    table = Table(tmp_path / "a.csv", COLUMNS)
    with pytest.raises(AssertionError, match="auc"):
        table.write({"step": 1, "auc": 0.5})
    table.close()


def test_the_metrics_header_is_the_documented_one() -> None:
    assert ",".join(METRICS_COLUMNS) == (
        "attempt,step,epoch,samples,loss,lr,grad_norm,window_steps,step_ms,step_ms_p50,step_ms_p90,step_ms_std,data_ms,"
        "forward_ms,backward_ms,optimizer_ms,samples_per_s,units_per_s,mfu,memory_gib,gpu_util,time"
    )


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("12", 12),
        ("-12", -12),
        ("007", 7),
        ("1_000", 1000),
        (" 5 ", 5),
        ("٣", 3),
        ("²", "²"),
        ("1.5", 1.5),
        ("-1.5e-3", -0.0015),
        ("1e-05", 1e-05),
        ("a.b", "a.b"),
        ("1.2.3", "1.2.3"),
        (".", "."),
        ("inf", math.inf),
        ("", None),
        ("true", "true"),
    ],
)
def test_every_cell_is_the_number_it_looks_like(cell: str, value: object) -> None:
    (row,) = parse_rows(["a", "b"], [f"1,{cell}"])
    assert row == {"a": 1, "b": value}
    assert type(row["b"]) is type(value)


def test_lines_that_end_like_those_of_another_system() -> None:
    assert parse_rows(["a", "b"], ["1,2\r", '"x,y",3\r', "", "1"]) == [{"a": 1, "b": 2}, {"a": "x,y", "b": 3}]
