"""`paceline report`: one HTML page and one Markdown file about a run. Reads the run, and writes nothing else into it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.arguments import Debug, Json, RunDirectory
from paceline.cli.asking import waiting
from paceline.cli.stop import is_running
from paceline.files import finite, storage_errors, write_text
from paceline.launch.results import result_rows
from paceline.launch.weights import readable
from paceline.reports.run_facts import RunFacts, read_run_facts
from paceline.telemetry.layout import RunLayout


def command(
    run: RunDirectory,
    window: Annotated[
        int, typer.Option("--window", metavar="N", min=1, help="Throughput is that of the last N steps.")
    ] = 50,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to write; without it, into the run directory.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write what there is to say about a run: one HTML page and one Markdown file.

    Example: paceline report runs/sasrec-1a2b3c4d --window 200
    """
    with waiting("reading the run"), readable(run):
        facts = read_run_facts(run, result_rows, _is_owned(run))
    with waiting("writing the report"):
        written = write_report(facts, window, out or run)
    if as_json:
        print(json.dumps(finite(to_record(facts, window, written)), indent=2, ensure_ascii=False, default=str))
        return
    for path in written:
        print(f"report: {path} ({path.stat().st_size / 1024:,.0f} KiB)")


def write_report(facts: RunFacts, window: int, directory: Path) -> list[Path]:
    """Both files, each replaced as a whole: who reads an older one meanwhile is not disturbed."""
    from paceline.reports.html import render_html
    from paceline.reports.markdown import render_markdown
    from paceline.reports.run_page import build_run_page

    page = build_run_page(facts, window)
    layout = RunLayout(directory)
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in ((layout.report_page, render_html(page)), (layout.report_text, render_markdown(page))):
            write_text(path, text)
    return [layout.report_page, layout.report_text]


def to_record(facts: RunFacts, window: int, written: list[Path]) -> dict[str, Any]:
    """What a script would want of it."""
    from dataclasses import asdict

    from paceline.reports.throughput import measure_throughput

    run, throughput = facts.run.run, measure_throughput(facts.run.metrics, window)
    return {
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
        "files": [str(path) for path in written],
    }


def _is_owned(root: Path) -> bool | None:
    """None where it cannot be told: there is no lock, or it must not be touched (a read-only copy)."""
    layout = RunLayout(root)
    try:
        return is_running(layout) if layout.owner_lock.exists() else None
    except OSError:
        return None
