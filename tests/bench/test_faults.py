"""The fault matrix without runs: what is drawn, what is kept, and how records are scored."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

import paceline
from paceline.bench.faults import matrix
from paceline.bench.faults.catalogue import CATALOGUE
from paceline.bench.faults.cell import Cell, draw_cell
from paceline.bench.faults.matrix import Matrix, Wanted, build_slots, choose, list_code
from paceline.bench.faults.notices import read_notices
from paceline.bench.faults.page import show_matrix, summarize_matrix
from paceline.bench.faults.score import confusion, score, summarize, summarize_all
from paceline.cli.bench_faults import _conclude as conclude
from paceline.diagnose.finding import KINDS
from paceline.errors import OccupiedError, UsageError
from paceline.sweep.trial import Slot


def notice(kind: str, rank: int | None, time: float, **more: Any) -> dict[str, Any]:
    common = {
        "kind": kind,
        "cause": "",
        "rank": rank,
        "time": time,
        "severity": "critical",
        "by": "incident",
        "what": "so",
    }
    return common | {"phase": "", "step": None, "stacks": 3, "missing": [], "stacks_s": 0.4} | more


def record(fault: str, *notices: dict[str, Any], rank: int = 1, **more: Any) -> dict[str, Any]:
    cell = {"fault": fault, "number": 1, "seed": 0, "nproc": 3, "rank": rank, "step": 30, "delay_s": 0.0}
    pace = [[step, 100 + 0.05 * step] for step in range(0, 4000, 5)]
    common = {"cell": cell, "status": "noticed", "exit_code": -9, "began": 110.0, "ended": 140.0, "pace": pace}
    return common | {"notices": list(notices), "tail": ["last words"]} | more


def test_cells_are_the_same_for_the_same_seed_and_differ_otherwise() -> None:
    assert draw_cell("sigstop", 2, 7) == draw_cell("sigstop", 2, 7)
    drawn = [draw_cell(name, number, 7) for name in CATALOGUE for number in range(1, 9)]
    assert {cell.nproc for cell in drawn} == {2, 3, 4}
    assert all(cell.rank < cell.nproc and cell.nproc >= cell.what.least_ranks for cell in drawn)
    assert len({(cell.nproc, cell.rank, cell.step) for cell in drawn if cell.fault == "sigstop"}) > 4
    assert {json.loads(cell.wish(Path("log"), None))["rank"] for cell in drawn if "evaluation" in cell.fault} == {-1}


def test_every_answer_is_a_kind_that_can_be_found() -> None:
    assert {kind for fault in CATALOGUE.values() if fault.answer for kind in fault.answer.kinds} <= set(KINDS)
    assert sum(fault.answer is None for fault in CATALOGUE.values()) == 5


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (record("sigstop", notice("stopped", 1, 111.2)), (True, True, True, True)),
        (record("sigstop", notice("stopped", 2, 111.2)), (True, False, True, True)),
        (record("sigstop", notice("stopped", 1, 111), notice("dead_rank", 0, 112)), (True, False, True, True)),
        (record("sigstop", notice("stall", 1, 117)), (True, True, False, False)),
        (record("sigstop"), (False, False, False, False)),
        (record("loop_forward", notice("stall", 1, 114, phase="forward")), (True, True, True, True)),
        (record("loop_forward", notice("stall", 1, 114, cause="data")), (True, True, False, True)),
        (record("slow_data_10", notice("straggler", 1, 112, cause="data", by="finding")), (True, True, True, True)),
        (record("slow_data_10", notice("straggler", 1, 113, cause="data", by="finding")), (True, True, True, False)),
        (record("disk_full", notice("disk_full", None, 111)), (True, None, True, True)),
    ],
)
def test_a_record_is_scored(seen: dict[str, Any], expected: tuple[bool, bool | None, bool, bool]) -> None:
    got = score(seen)
    assert (got.is_noticed, got.culprit, got.cause, got.is_in_time) == expected
    assert got.is_valid
    assert got.is_right == (expected[1] is not False and expected[2])


def test_alarms_and_stacks() -> None:
    early = score(record("sigstop", notice("straggler", 0, 105, severity="warning"), notice("stopped", 1, 111)))
    assert (early.alarms, early.is_right) == (("straggler",), False)
    assert score(record("sigstop", notice("stopped", 1, 111, stacks=2))).stacks is False
    for why, expected in (("it did not answer", False), ("stopped: …; py-spy is not installed (…)", True)):
        assert score(record("sigstop", notice("stopped", 1, 111, stacks=2, missing=[[1, why]]))).stacks is expected
    assert score(record("sigstop", notice("stopped", 1, 111, stacks_s=6.0))).stacks is False
    quiet = record("clean", began=None, status="ended", exit_code=0)
    assert score(quiet).is_right
    loud = record("clean", notice("stall", None, 105), began=None, status="ended", exit_code=0)
    assert score(loud).alarms == ("stall",)
    assert not score(record("clean", began=None, status="capped", exit_code=-9)).is_valid
    assert not score(record("sigstop", began=None, status="not begun")).is_valid


def test_the_figures() -> None:
    seen = [
        record("sigstop", notice("stopped", 1, 111)),
        record("sigstop", notice("stall", 0, 116, cause="forward")),
        record("clean", began=None, status="ended", exit_code=0),
        record("disk_full", notice("disk_full", None, 111, by="verdict")),
    ]
    scores = [score(each) for each in seen]
    whole = summarize_all(scores)
    assert (whole["faulty"], whole["noticed"], whole["in_time"], whole["cause_right"]) == (3, 3, 2, 2)
    assert (whole["culprit_right"], whole["culprit_asked"], whole["clean"], whole["clean_with_alarm"]) == (1, 2, 1, 0)
    row = summarize(scores)[0]
    assert (row["fault"], row["runs"], row["latency"], row["latency_most"]) == ("sigstop", 2, 3.5, 6.0)
    assert confusion(scores)["sigstop"] == {"stopped": 1, "stall": 1}
    assert confusion(scores)["clean"] == {"nothing": 1}
    text = io.StringIO()
    show_matrix(summarize_matrix(7, seen, asked=9), Console(file=text, width=160))
    assert "4 of 9 cells; 3 faulty runs: 3 noticed, 2 in time" in text.getvalue()
    assert "sigstop-001: rank 1 of 3, step 30: stall (forward): so" in text.getvalue()


def test_an_innocent_rank_that_is_accused_later() -> None:
    right, late = notice("straggler", 1, 112, cause="data"), notice("straggler", 2, 113, severity="warning")
    got = score(record("slow_data_25", right, late))
    assert (got.culprit, got.accused) == (False, ("straggler",))
    assert summarize_all([got])["straggler_alarms"] == 1


class Pretended:
    """Cells that are over at the second look; how many were under way at once."""

    begun: ClassVar[list[str]] = []
    under_way: ClassVar[list[int]] = []
    alive: ClassVar[set[str]] = set()

    def __init__(self, cell: Cell, place: Path, slot: Slot) -> None:
        self.cell, self.place, self.slot, self.looks = cell, place, slot, 0
        (place / "run").mkdir(parents=True)
        (place / "run" / "events.jsonl").write_text("x" * 100_000 + "the end")
        self.begun.append(cell.name)
        self.alive.add(cell.name)
        self.under_way.append(len(self.alive))

    def look(self) -> dict[str, Any] | None:
        self.looks += 1
        if self.looks < 2:
            return None
        self.alive.discard(self.cell.name)
        right = notice("stopped", self.cell.rank, 111, stacks=self.cell.nproc)
        told = [right] if self.cell.fault == "sigstop" else []
        return record(self.cell.fault, *told) | {"cell": self.cell.to_record()}

    def end(self) -> None:
        self.alive.discard(self.cell.name)


@pytest.fixture
def pretended(monkeypatch) -> type[Pretended]:
    monkeypatch.setattr(matrix, "_LOOK_S", 0.0)
    for seen in (Pretended.begun, Pretended.under_way, Pretended.alive):
        seen.clear()
    return Pretended


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_matrix_goes_on_where_it_was_ended(tmp_path: Path, pretended: type[Pretended], jobs: int, capsys) -> None:
    wanted, slots = Wanted(2, 3, ["sigstop", "sigkill", "clean"]), build_slots(jobs, 2, range(4))
    first = Matrix(tmp_path, wanted, pretended)
    with pytest.raises(OccupiedError):
        Matrix(tmp_path, wanted, pretended)
    seen = []
    for each in first.run(slots, is_over=lambda: False):
        seen.append(each)
        if len(seen) == 2:  # of three, one is still under way
            break
    first.close()
    assert pretended.alive == set()
    assert max(pretended.under_way) == jobs
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["cell"] for line in lines] == [each["cell"] for each in seen]
    second = Matrix(tmp_path, wanted, pretended)
    assert second.seed == first.seed
    assert second.cells == first.cells
    assert len(second.cells) == 2 + 2 + 3
    assert len(second.missing()) == 5
    assert len(list(second.run(slots, is_over=lambda: True))) == 0
    assert len(list(second.run(slots, is_over=lambda: False))) == 5
    assert len(second.records()) == 7
    unclear = {"sigkill-001", "sigkill-002", "clean-001", "clean-002", "clean-003"}  # nobody pretended them to be right
    assert {path.name for path in (tmp_path / "cells").iterdir()} == set(second.wrong()) == unclear
    conclude(second, False, True)
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "summary.json").read_text())
    assert "7 of 7 cells" in (tmp_path / "summary.txt").read_text()
    with tarfile.open(tmp_path / "wrong.tar.gz") as archive:
        names = archive.getnames()
        events = archive.extractfile("sigkill-001/run/events.jsonl")
        assert events is not None
        text = events.read()
    assert "clean-003/record.json" in names
    assert len(text) == 1 << 15
    assert text.endswith(b"the end")
    second.close()
    with pytest.raises(UsageError, match="begun with"):
        Matrix(tmp_path, Wanted(2, 3, (), first.seed + 1), pretended)


def test_cells_have_as_many_cores_whatever_runs_beside_them() -> None:
    assert [slot.cores for slot in build_slots(3, 2, range(6))] == [{0, 1}, {2, 3}, {4, 5}]
    assert [slot.cores for slot in build_slots(2, 2, [0, 1])] == [{0, 1}, {0, 1}]


def test_long_cells_begin_first(tmp_path: Path) -> None:
    whole = Matrix(tmp_path, Wanted(2, 3, seed=1))
    whole.close()
    half = 5 + len(CATALOGUE)
    assert {cell.what.answer for cell in whole.cells[:5]} == {None}  # what there is more of
    for cells in (whole.cells[5:half], whole.cells[half:]):
        seconds = [cell.what.seconds for cell in cells]
        assert seconds == sorted(seconds, reverse=True)
        assert seconds[0] > seconds[-1]


def test_results_of_other_code_do_not_count(tmp_path: Path) -> None:
    wanted = Wanted(1, 1, ["sigstop"], 5)
    Matrix(tmp_path, wanted).close()
    line = record("sigstop", notice("stopped", 1, 111)) | {"seed": 5, "code": "another"}
    (tmp_path / "ledger.jsonl").write_text(json.dumps(line) + "\n")
    whole = Matrix(tmp_path, wanted)
    assert (len(whole.missing()), whole.num_foreign) == (1, 1)
    whole.close()


def test_words_choose_faults() -> None:
    assert choose([]) == list(CATALOGUE)
    assert choose(["loop"]) == ["loop_data", "loop_forward", "loop_backward"]
    assert choose(["clean"]) == ["clean"]
    assert len(choose(["clean_"])) == 4
    with pytest.raises(UsageError, match="no fault 'sigstp'"):
        choose(["sigstp"])


def test_notices_are_read_from_everywhere(tmp_path: Path) -> None:
    root, spare = tmp_path / "run", tmp_path / "tmp"
    stacks = root / "incidents" / "0001-stall-rank1" / "stacks"
    stacks.mkdir(parents=True)
    (stacks / "rank_00000.txt").write_text("frames")
    (stacks / "rank_00001.txt").write_text("")
    found = {
        "kind": "stall",
        "cause": "data",
        "rank": 1,
        "severity": "critical",
        "what": "stands still",
        "phase": "data",
    }
    report = {"noticed": 50.0, "finding": found, "stacks": {"missing": {"1": "stopped"}}}
    (stacks.parent / "report.json").write_text(json.dumps(report))
    torn = root / "incidents" / "0002-stall-rank1" / "report.json"
    torn.parent.mkdir()
    torn.write_text('{"noticed": 5')
    events = [
        {"kind": "finding", "time": 40.0, "finding": found | {"kind": "straggler", "severity": "warning"}},
        {"kind": "incident", "time": 51.0, "finding": found},
        {
            "kind": "failure",
            "time": 60.0,
            "error": "NonFiniteError",
            "rank": 0,
            "problems": [{"what": "the loss is not a number", "where": "step 9 (…), not finite on rank 2"}],
        },
        {"kind": "failure", "time": 61.0, "error": "RankLostError", "rank": 1, "secondary": True},
    ]
    (root / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    seen = read_notices(root, spare, "StorageError: the disk is full", 99.0)
    assert [(each.kind, each.rank, each.by) for each in seen] == [
        ("straggler", 1, "finding"),
        ("stall", 1, "incident"),
        ("not_finite", 2, "failure"),
    ]
    assert (seen[1].stacks, seen[1].missing) == (1, ((1, "stopped"),))
    (stacks.parent / "report.json").write_text(json.dumps(report | {"times": 7, "returned": 55.0}))
    again = [each for each in read_notices(root, spare, "", 99.0) if each.by == "incident"]
    assert [(each.time, each.stacks) for each in again] == [(50.0, 0), (55.0, 1)], "it came back: told twice"
    (spare / "run").mkdir(parents=True)
    only = read_notices(tmp_path / "nothing", spare, "run x\nStorageError: the disk is full\n  where: …", 99.0)
    assert [(each.kind, each.by) for each in only] == [("disk_full", "verdict")]
    lost = read_notices(tmp_path / "nothing", spare, "RankLostError: rank 2 (pid 7) was killed by signal 9", 99.0)
    assert [(each.kind, each.rank) for each in lost] == [("dead_rank", 2)]


def test_whatever_takes_part_in_a_cell_makes_it_another_one() -> None:
    package = Path(paceline.__file__).parent
    rooms = {name.partition("/")[0] for name in list_code(package)}
    everything = {path.name for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"configs"} == everything - {"playbook", "reports", "triage"}
    assert {"cli/train.py", "recipes/job.py", "files.py", "bench/faults/matrix.py"} <= set(list_code(package))
    assert "bench/collective.py" not in list_code(package)
