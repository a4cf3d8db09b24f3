"""The files of a sweep that people and scripts read, all made of one description, each replaced as a whole after every trial.

run_manifest.tsv      every trial: status, exit code, duration, last step, precision and attention as requested and as they were
per_run_metrics.csv   every trial that counts, with its numbers
ranks.csv             every rank of those trials, with its phases, where the plan asks for it
group_summary.csv     every case; ranked_groups.csv: the same, the best first; best_config.json, best.yaml: the best one
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.config.describe import value_at
from paceline.config.dump import dump_config
from paceline.config.sections import RunConfig
from paceline.config.source import show
from paceline.files import finite, storage_errors, write_json, write_text
from paceline.sweep.outcome import Sweep
from paceline.sweep.plan import COMMAND, Plan
from paceline.sweep.ranks import has_rank_table, rank_rows
from paceline.sweep.summary import render_summary

Described = Mapping[str, Any]


def write_outputs(sweep: Sweep, described: Described) -> None:
    """Every file; StorageError where there is no room. What was there before stays whole."""
    root = sweep.root
    axes = list(sweep.matrix.axes)
    values = {case.name: case.values for case in sweep.matrix.cases}
    with storage_errors(root):
        write_text(root / "run_manifest.tsv", _table(_manifest(described, axes, values), "\t"))
        write_text(root / "per_run_metrics.csv", _table(_per_run(described, axes, values)))
        groups = [_group(case, axes, _trials_of(case, described)) for case in described["cases"]]
        summary = [{key: value for key, value in group.items() if key != "rank"} for group in groups]
        write_text(root / "group_summary.csv", _table(sorted(summary, key=lambda group: str(group["group"]))))
        write_text(root / "ranked_groups.csv", _table(groups))
        if has_rank_table(described):
            write_text(root / "ranks.csv", _table(rank_rows(described)))
        _write_best(sweep, described)
        write_text(root / "summary.md", render_summary(described))
        write_text(root / "sweep.json", json.dumps(finite(described), indent=1, default=str) + "\n")
    _write_report(root, is_owned=described["state"] == "running")


def _write_report(root: Path, *, is_owned: bool) -> None:
    """The page about the sweep, from the files that were just written, as `paceline report` makes it."""
    from paceline.reports.sweep_facts import read_sweep_facts
    from paceline.reports.sweep_page import build_sweep_page
    from paceline.reports.writing import write_page

    write_page(build_sweep_page(read_sweep_facts(root, is_owned), root), root)


def _write_best(sweep: Sweep, described: Described) -> None:
    name = described["best"]
    if name is None:
        # What an earlier start wrote was of trials that do not count any more.
        for file in ("best.yaml", "best_config.json"):
            (sweep.root / file).unlink(missing_ok=True)
        return
    case = sweep.matrix.case(name)
    row = next(entry for entry in described["cases"] if entry["name"] == name)
    numbers = ("verdict", "value", "low", "high", "samples_per_s", "step_ms_p50", "step_ms_p90", "memory_gib", "num_ok")
    record = {
        "group": name,
        "recipe": case.job.recipe.name,
        "is_decided": described["is_decided"],
        "rivals": described["rivals"],
        "repeats_needed": described["repeats_needed"],
        "values": case.values,
        "objective": described["objective"],
        "baseline": described["baseline"],
        "sentence": described["sentence"],
        "config": "best.yaml",
    } | {key: row[key] for key in numbers}
    # The first note of an undecided sweep says so.
    doubt = [f"# {described['notes'][0]}"] if described["rivals"] else []
    head = [
        f"# {described['sentence']}",
        *doubt,
        f"# from {sweep.plan.path.name}; train with: paceline train best.yaml",
        "",
    ]
    write_text(sweep.root / "best.yaml", "\n".join(head) + dump_config(_as_trained(case.job.config, sweep.plan)))
    write_json(sweep.root / "best_config.json", finite(record))


def _as_trained(config: RunConfig, plan: Plan) -> RunConfig:
    """A script whose words name its length has to be given one: that of a trial."""
    words = " ".join(value_at(config, "command.argv")) if config.recipe == COMMAND else ""
    if config.train.max_steps is not None or "{train.max_steps}" not in words:
        return config
    train = config.train.model_copy(update={"max_steps": plan.config.steps})
    return config.model_copy(update={"train": train})


def _manifest(described: Described, axes: Sequence[str], values: Mapping[str, Described]) -> list[dict[str, Any]]:
    rows = []
    for trial in described["trials"]:
        choices = trial.get("choices") or {}
        rows.append(
            {
                "trial": trial["trial"],
                "group": trial["case"],
                "repeat": trial["round"],
                "status": trial["status"],
                "exit_code": trial.get("exit_code"),
                "duration_sec": _rounded(trial.get("duration_s")),
                "last_step": trial.get("last_step"),
                "max_steps": trial["steps"] + trial["warmup_steps"],
                **_chosen("precision", choices.get("precision.mode")),
                **_chosen("attention", choices.get("attention.impl")),
                "world_size": trial.get("world_size"),
                **{axis: _shown(values.get(trial["case"], {}).get(axis)) for axis in axes},
                "began": trial["began"],
                "ended": trial["ended"],
                "is_counted": trial["is_counted"],
                "run_dir": trial["directory"],
                "reason": trial["reason"],
                "hardware": trial["hardware"][:12],
                "code": trial["code"][:12],
                "key": trial["key"],
            }
        )
    return rows


def _chosen(word: str, choice: Mapping[str, Any] | None) -> dict[str, Any]:
    choice = choice or {}
    return {f"requested_{word}": choice.get("requested"), f"effective_{word}": choice.get("effective")}


def _per_run(described: Described, axes: Sequence[str], values: Mapping[str, Described]) -> list[dict[str, Any]]:
    rows = []
    for trial in described["trials"]:
        if not trial["is_counted"]:
            continue
        # Windows are in the recipe's unit, these columns in samples.
        pace, samples_per_s = trial.get("units_per_s"), trial.get("samples_per_s")
        scale = samples_per_s / pace if pace and samples_per_s else 1.0
        windows = [rate * scale for rate in trial.get("windows") or ()]
        rows.append(
            {
                "trial": trial["trial"],
                "group": trial["case"],
                "repeat": trial["round"],
                "status": trial["status"],
                **{axis: _shown(values.get(trial["case"], {}).get(axis)) for axis in axes},
                "tail_mean_iter_p50_ms": trial.get("step_ms_p50"),
                "tail_mean_iter_p90_ms": trial.get("step_ms_p90"),
                "tail_samples_per_sec_mean": trial.get("samples_per_s"),
                "tail_samples_per_sec_std": statistics.stdev(windows) if len(windows) > 1 else None,
                "num_windows": len(windows),
                "data_ms": trial.get("data_ms"),
                "memory_gib": trial.get("memory_gib"),
                "rank_spread_ms": trial.get("rank_spread_ms"),
                "final_loss": trial.get("final_loss"),
                "samples": trial.get("samples"),
                "metric": trial.get("metric"),
                "last_step": trial.get("last_step"),
                "duration_sec": _rounded(trial.get("duration_s")),
                "startup_sec": _rounded(trial.get("startup_s")),
                "device_sec": _rounded(trial.get("device_s")),
                "exit_code": trial.get("exit_code"),
                "run_dir": trial["directory"],
            }
        )
    return rows


def _trials_of(case: Described, described: Described) -> list[Described]:
    return [trial for trial in described["trials"] if trial["case"] == case["name"] and trial["is_counted"]]


def _group(case: Described, axes: Sequence[str], trials: Sequence[Described]) -> dict[str, Any]:
    return {
        "rank": case["rank"],
        "group": case["name"],
        "verdict": case["verdict"],
        "is_baseline": case["is_baseline"],
        "is_complete": case["is_complete"],
        "num_trials": case["num_trials"],
        "num_ok": case["num_ok"],
        "num_failed": case["num_failed"],
        **{axis: _shown(case["values"].get(axis)) for axis in axes},
        "objective": case["value"],
        "objective_low": case["low"],
        "objective_high": case["high"],
        "ratio": case["ratio"],
        "tail_mean_iter_p50_ms": case["step_ms_p50"],
        "tail_mean_iter_p90_ms": case["step_ms_p90"],
        "tail_samples_per_sec_mean": case["samples_per_s"],
        "tail_samples_per_sec_std": case["samples_per_s_std"],
        "data_ms": case["data_ms"],
        "memory_gib": case["memory_gib"],
        "rank_spread_ms": case["rank_spread_ms"],
        "final_loss": case["final_loss"],
        "metric": case["metric"],
        "duration_sec": _rounded(sum(trial.get("duration_s") or 0 for trial in trials)),
        "device_sec": _rounded(case["device_s"]),
        "evidence": case["evidence"],
    }


def _shown(value: Any) -> Any:
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else show(value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _table(rows: Sequence[Mapping[str, Any]], delimiter: str = ",") -> str:
    buffer = io.StringIO()
    columns = list(rows[0]) if rows else []
    writer = csv.DictWriter(buffer, columns, delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        # A reason may have several lines; a row is one.
        writer.writerow(
            {key: " ".join(value.split()) if isinstance(value, str) else value for key, value in row.items()}
        )
    return buffer.getvalue()


def write_plan(path: Path, config: Mapping[str, Any]) -> None:
    """plan.yaml: every key of the plan, with its effective value."""
    with storage_errors(path):
        write_text(path, "".join(f"{key}: {show(value)}\n" for key, value in config.items()))
