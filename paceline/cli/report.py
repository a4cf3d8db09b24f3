"""`paceline report`: one HTML page and one Markdown file about a run, a sweep or a playbook. Reads it, and writes nothing else into it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.arguments import Debug, Json
from paceline.cli.asking import waiting
from paceline.errors import UsageError
from paceline.files import finite, is_locked
from paceline.launch.weights import readable
from paceline.telemetry.layout import RunLayout

if TYPE_CHECKING:
    from paceline.reports.page import Page

_WINDOW = 50
_FILES = {"playbook": "playbook.json", "sweep": "sweep.json"}
"""what tells them from a run"""


def command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory of a run, of a sweep or of a playbook.")
    ],
    window: Annotated[
        int | None,
        typer.Option(
            "--window", metavar="N", min=1, help=f"A run's throughput is that of its last N steps ({_WINDOW})."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to write; without it, into the directory itself.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write what there is to say about a run, a sweep or a playbook: one HTML page and one Markdown file.

    Example: paceline report runs/sasrec-1a2b3c4d --window 200
    """
    kind = kind_of(directory)
    if kind != "run" and window is not None:
        what = f"--window {window} has no effect on a {kind}: its numbers are those of its trials"
        raise UsageError(what, "flag --window", "leave it out, or report one of its runs")
    with waiting(f"reading the {kind}"), readable(directory):
        page, record = _READERS[kind](directory, out or directory, window or _WINDOW)
    with waiting("writing the report"):
        from paceline.reports.writing import write_page

        written = write_page(page, out or directory)
    if as_json:
        told = record | {"files": [str(path) for path in written]}
        print(json.dumps(finite(told), indent=2, ensure_ascii=False, default=str))
        return
    for path in written:
        print(f"report: {path} ({path.stat().st_size / 1024:,.0f} KiB)")


def kind_of(directory: Path) -> str:
    return next((kind for kind, name in _FILES.items() if (directory / name).exists()), "run")


def _read_run(root: Path, beside: Path, window: int) -> tuple[Page, dict[str, Any]]:
    from dataclasses import asdict

    from paceline.launch.results import result_rows
    from paceline.reports.run_facts import read_run_facts
    from paceline.reports.run_page import build_run_page
    from paceline.reports.throughput import measure_throughput

    facts = read_run_facts(root, result_rows, is_locked(RunLayout(root).owner_lock))
    run, throughput = facts.run.run, measure_throughput(facts.run.metrics, window)
    record = {
        "run": str(facts.run.layout.root),
        "id": run.id,
        "recipe": run.recipe,
        "state": run.state,
        "reason": run.reason,
        "is_owned": facts.is_owned,
        "attempts": len(run.attempts),
        "results": [{"result": name, "value": value, "from": evidence} for name, value, evidence in facts.results],
        "window": window,
        "throughput": (asdict(throughput) | {"from": str(facts.run.layout.metrics)}) if throughput else None,
        "gaps": list(facts.gaps),
    }
    return build_run_page(facts, window), record


def _read_sweep(root: Path, beside: Path, window: int) -> tuple[Page, dict[str, Any]]:
    from paceline.reports.sweep_facts import read_sweep_facts
    from paceline.reports.sweep_page import build_sweep_page, sentence_of

    facts = read_sweep_facts(root, is_locked(root / ".driver.lock"))
    record = {
        "sweep": str(root),
        "state": facts.state,
        "is_owned": facts.is_owned,
        "winner": facts.winner.name if facts.winner is not None else None,
        "sentence": sentence_of(facts),
        "cases": [{"case": case.name, "verdict": case.verdict, "value": case.value("value")} for case in facts.cases],
        "trials": len(facts.trials),
        "gaps": list(facts.gaps),
    }
    return build_sweep_page(facts, beside), record


def _read_playbook(root: Path, beside: Path, window: int) -> tuple[Page, dict[str, Any]]:
    from paceline.reports.playbook_facts import read_playbook_facts
    from paceline.reports.playbook_page import build_playbook_page

    facts = read_playbook_facts(root, is_locked(RunLayout(root).owner_lock))
    record = {
        "playbook": str(root),
        "name": facts.name,
        "state": facts.state,
        "is_owned": facts.is_owned,
        "phases": [{"phase": phase.name, "kind": phase.kind, "state": phase.state} for phase in facts.phases],
        "gaps": list(facts.gaps),
    }
    return build_playbook_page(facts, beside), record


_READERS = {"run": _read_run, "sweep": _read_sweep, "playbook": _read_playbook}
