"""A phase that judges all others: every condition of every gate with its number, the file and window of that number, and a verdict.

    kind: accept
    gate: [failed == 0]

What has no threshold is not judged, and neither is what was skipped: the verdict counts them, and is "passed" only where there are none.
What the validation is made of is copied into one directory.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from paceline.config.sections import key
from paceline.files import finite, read_json
from paceline.playbook.phase import Phase, Scene, Work
from paceline.playbook.results import EVERY, Evidence, Grid, Outcome, Reports, Value
from paceline.playbook.state import FAILED, SKIPPED, PhaseRecord
from paceline.playbook.verdicts import LIMITS, MET, NOT_JUDGED, NOT_MEASURED, NOT_MET, shown
from paceline.reports.amounts import counted

COLUMNS = ("phase", "criterion", "number", "file and window", "verdict", "why")
_TABLE = "acceptance.json"
SKIPPED_WORD = "skipped"
REPORTED = "reported"
"""a number that is held to nothing, and is there to be read"""
_KEPT = ("metrics.csv", "env.json", "config.yaml", "run.json", "events.jsonl")
_LARGEST = 1 << 20
"""bytes of a file that is copied; a larger one is named instead"""


@dataclass(frozen=True)
class Row:
    """One line of the acceptance table."""

    phase: str
    criterion: str
    number: str
    source: str
    verdict: str
    why: str = ""


class Accept(Phase):
    """The acceptance table, and the deliverables."""

    reports: ClassVar[Reports] = Reports(
        {
            "met": "conditions that hold",
            "failed": "conditions that do not, were not measured, or phases that failed",
            "not_judged": "conditions whose threshold nobody has set",
            "skipped": "phases that were not run",
            "verdict": "in words",
            **EVERY,
        },
        kinds={"verdict": str},
    )

    judges: ClassVar[bool] = True

    kind: Literal["accept"] = key(..., "It judges.")

    def plan_work(self, scene: Scene) -> Work:
        place = scene.root.parent / "deliverables"
        rows = [row for record in scene.records for row in judge_record(record)]
        kept = dict(_deliverables(scene.records, scene.root.parent))
        table = {"v": 1, "verdict": say_verdict(rows), "rows": [asdict(row) for row in rows]}
        texts = {
            "acceptance.csv": write_csv(COLUMNS, [list(asdict(row).values()) for row in rows]),
            **{f"{name}.csv": text for name, text in _tables(scene.records)},
            **{name: path.read_text(encoding="utf-8", errors="replace") for name, path in kept.items()},
        }
        written = table | {"files": sorted(texts)}
        texts[_TABLE] = json.dumps(finite(written), indent=1, ensure_ascii=False) + "\n"
        files = {place / name: text for name, text in texts.items()}
        removed = [path for path in _written_before(place) if path not in files]
        return Work([], place, {"kind": "accept", "table": table, "files": sorted(texts)}, files, removed)

    def read(self, work: Work) -> Outcome:
        rows = [Row(**row) for row in read_json(work.place / _TABLE)["rows"]]
        count = {word: sum(row.verdict == word for row in rows) for word in (MET, NOT_JUDGED, SKIPPED_WORD)}
        failed = sum(map(_is_missed, rows))
        verdict = say_verdict(rows)
        results: dict[str, Value] = {"met": count[MET], "failed": failed, "not_judged": count[NOT_JUDGED]}
        results |= {"skipped": count[SKIPPED_WORD], "verdict": verdict}
        source = f"{work.place.name}/{_TABLE}, {counted(len(rows), 'row')}"
        table = Grid("acceptance", COLUMNS, [list(asdict(row).values()) for row in rows])
        listed = sorted(str(path.relative_to(work.place)) for path in work.place.rglob("*") if path.is_file())
        evidence = [Evidence("verdict", verdict, source)]
        evidence += [Evidence("deliverable", name, f"{work.place.name}/{name}") for name in listed]
        links = {"deliverables": work.place}
        return Outcome(results, evidence, links, dict.fromkeys(results, source), tables=[table], verdict=verdict)


def judge_record(record: PhaseRecord) -> Iterator[Row]:
    """The rows of one phase: a line for each of its conditions, or one that says why there are none."""
    if record.state == SKIPPED or record.outdated:
        yield Row(record.name, "", "", "", SKIPPED_WORD, record.outdated or record.reason)
        return
    if record.state == FAILED or not record.has_run:
        do = "; ".join(record.remedy)
        yield Row(
            record.name, "ends well", "", record.place, record.state, record.reason + (f"; type {do}" if do else "")
        )
        return
    judged = {name for condition in record.gate for name in condition["values"]}
    for name in record.numbers:
        if name not in judged:
            number = f"{name} = {shown(record.results.get(name))}"
            yield Row(record.name, "", number, record.sources.get(name, record.place), REPORTED)
    if not record.gate:
        yield Row(record.name, "ends well", f"exit code {record.exit_code}", record.place, MET)
    for condition in record.gate:
        names = [name for name in condition["values"] if not name.startswith(LIMITS)]
        numbers = ", ".join(f"{name} = {shown(condition['values'][name])}" for name in names)
        sources = dict.fromkeys(record.sources.get(name, record.place) for name in names)
        why = str(condition.get("why") or "")
        if condition["verdict"] in (NOT_MET, NOT_MEASURED) and record.remedy:
            why += ("; " if why else "") + "type " + " ; ".join(record.remedy)
        limits = ", ".join(
            f"{name} = {shown(condition['values'][name])}" for name in condition["values"] if name not in names
        )
        text = condition["text"] + (f"   ({limits})" if limits and condition["verdict"] != NOT_JUDGED else "")
        yield Row(record.name, text, numbers, "; ".join(sources), condition["verdict"], why)


def say_verdict(rows: Sequence[Row]) -> str:
    """What may be claimed, and no more."""
    rows = [row for row in rows if row.verdict != REPORTED]
    failed = [row for row in rows if _is_missed(row)]
    open_ones = sum(row.verdict == NOT_JUDGED for row in rows)
    skipped = sum(row.verdict == SKIPPED_WORD for row in rows)
    rest = [f"{open_ones} not judged"] if open_ones else []
    rest += [f"{skipped} skipped"] if skipped else []
    if failed:
        phases = ", ".join(dict.fromkeys(row.phase for row in failed))
        return "; ".join([f"failed: {len(failed)} of {len(rows)} not met ({phases})", *rest])
    if not any(row.verdict == MET for row in rows):
        return "; ".join(["nothing was judged", *rest])
    return "; ".join(["passed what was judged", *rest]) if rest else "passed"


def _is_missed(row: Row) -> bool:
    return row.verdict not in (MET, NOT_JUDGED, SKIPPED_WORD, REPORTED)


def write_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return file.getvalue()


def _written_before(place: Path) -> list[Path]:
    """What an earlier start put there, and is there still."""
    try:
        names = [Path(name) for name in read_json(place / _TABLE)["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [place / name for name in names if ".." not in name.parts and (place / name).is_file()]


def _current(records: Sequence[PhaseRecord]) -> list[PhaseRecord]:
    return [record for record in records if not record.outdated]


def _tables(records: Sequence[PhaseRecord]) -> Iterator[tuple[str, str]]:
    """Each phase's tables: that of the buckets, of the optimizer, of the ranges."""
    for record in _current(records):
        for number, table in enumerate(record.tables, 1):
            name = record.name if number == 1 else f"{record.name}-{number}"
            yield name, write_csv(table["columns"], table["rows"])


def _deliverables(records: Sequence[PhaseRecord], root: Path) -> Iterator[tuple[str, Path]]:
    """(name in the directory, file): snapshots as they are called, records of runs under the phase's name."""
    for record in _current(records):
        links: Mapping[str, Path] = {word: root / place for word, place in record.links.items()}
        if "snapshot" in links and links["snapshot"].is_dir():
            yield from ((path.name, path) for path in sorted(links["snapshot"].iterdir()))
        if "preflight" in links and links["preflight"].is_file():
            yield "preflight.json", links["preflight"]
        if "run" in links:
            run = links["run"]
            found = [run / name for name in _KEPT] + sorted((run / "heartbeat").glob("rank_*.jsonl"))
            found += sorted((run / "memory").glob("rank_*.json"))
            for path in found:
                if path.is_file() and path.stat().st_size <= _LARGEST:
                    yield f"{record.name}/{path.relative_to(run)}", path
