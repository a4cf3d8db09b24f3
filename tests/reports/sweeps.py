"""Sweeps for the tests of reports: a sweep.json as the driver writes it, with made-up numbers from a fixed seed."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from statistics import fmean
from typing import Any

AXES: dict[str, list[Any]] = {
    "parallel.bucket_mb": [10, 25, 50, 100],
    "data.num_workers": [0, 2, 4],
    "parallel.compression": ["none", "bf16", "fp16"],
}


def build_sweep(axes: dict[str, list[Any]] = AXES, repeats: int = 5, **more: Any) -> dict[str, Any]:
    """A finished sweep of a grid: one case does not fit, one diverges, one failed once, and the leader has a tie."""
    draw = random.Random(7)
    cases, trials = [], []
    for number, values in enumerate(itertools.product(*axes.values())):
        chosen = dict(zip(axes, values, strict=True))
        name = " ".join(f"{axis.split('.')[-1]}={value}" for axis, value in chosen.items())
        pace = 1000 + 180 * (number % 7) / 7 + 60 * (number // 9) - 20 * (number % 5)
        status = {3: "oom", 5: "diverged"}.get(number, "ok")
        rates = []
        for round_number in range(1, repeats + 1):
            failed = number == 8 and round_number == 2
            rate = pace * draw.gauss(1, 0.01)
            rates += [rate] if status == "ok" and not failed else []
            trials.append(_trial(name, round_number, "failed" if failed else status, rate, draw))
            if status == "oom":
                break
        verdict = {"oom": "does not fit", "diverged": "diverges"}.get(status, "slower")
        cases.append({"name": name, "values": chosen, "verdict": verdict, "is_complete": number != 8, "rates": rates})
    trials.sort(key=lambda trial: trial["round"])
    for number, trial in enumerate(trials, 1):
        trial |= {"trial": number, "is_counted": True, "directory": f"trials/{number:04d}-{number}-r{trial['round']}"}
    for case in cases:
        rates = case.pop("rates")
        if rates:
            mean = fmean(rates)
            case |= {"value": mean, "low": mean * 0.992, "high": mean * 1.008, "trials": len(rates)}
    ranked = sorted(cases, key=lambda case: (not case["is_complete"], -case.get("value", 0.0)))
    ranked[0] |= {"verdict": "winner", "evidence": f"faster than each other case in {repeats} paired rounds"}
    if len(ranked) > 2:
        ranked[1] |= {"verdict": "tied", "evidence": "0.4 % slower, between 1.1 % and -0.3 %"}
    for rank, case in enumerate(ranked, 1):
        case["rank"] = rank
    spent = sum(trial["device_s"] for trial in trials)
    history = _race(ranked, trials)
    record = {
        "v": 1,
        "name": "buckets",
        "state": "finished",
        "recipe": "sasrec",
        "created": 1.79e9,
        "updated": 1.79e9 + 4000,
        "plan": {"recipe": "sasrec", "axes": axes, "steps": 300, "margin": 0.01, "confidence": 0.95, "loss_tolerance": 0.02, "racing": True},
        "axes": [{"name": name, "values": values} for name, values in axes.items()],
        "sentence": f"{ranked[0]['name']} wins with 1,286 samples/s." if ranked else "No trial has ended yet.",
        "argv": ["paceline", "sweep", "plan.yaml"],
        "baseline": cases[0]["name"] if cases else None,
        "objective": {"name": "throughput", "unit": "samples/s", "direction": "max"},
        "cases": ranked,
        "trials": trials,
        "history": history,
        "costs": {"device_s": spent, "full_grid_device_s": spent * 2.5, "full_grid_repeats": repeats},
        "machine": {"host": "a", "gpus": [{"name": "H200"}]},
        "hardware": {"gpus": ["H200"]},
        "code": {"git": "0123abc", "versions": {"torch": "2.13"}},
        "unit": "samples",
    }  # fmt: skip
    return record | more


def save_sweep(root: Path, record: dict[str, Any]) -> Path:
    root.mkdir(parents=True)
    for trial in record.get("trials", []):
        if isinstance(trial, dict) and isinstance(trial.get("directory"), str):
            (root / trial["directory"]).mkdir(parents=True, exist_ok=True)
    (root / "sweep.json").write_text(json.dumps(record))
    return root


def _race(ranked: list[dict[str, Any]], trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every trial as the race saw it; each case is decided when its last one has ended."""
    spent, history = 0.0, []
    last = {trial["case"]: trial["trial"] for trial in trials}
    verdicts = {case["name"]: case["verdict"] for case in ranked}
    for trial in trials:
        spent += trial["device_s"]
        entry = {name: trial[name] for name in ("trial", "case", "round", "status")} | {
            "device_s": spent,
            "decided": [],
        }
        if last[trial["case"]] == trial["trial"]:
            evidence = "3.1 % slower (2.2 to 4.0), p = 0.001"
            entry["decided"] = [
                {"case": trial["case"], "was": "undecided", "verdict": verdicts[trial["case"]], "evidence": evidence}
            ]
        history.append(entry)
    return history


def _trial(case: str, round_number: int, status: str, rate: float, draw: random.Random) -> dict[str, Any]:
    record: dict[str, Any] = {"case": case, "round": round_number, "status": status, "device_s": 40 + draw.random() * 9}
    record |= {"startup_s": 6.0, "began": 1.79e9, "steps": 280, "counted_steps": 280}
    if status in ("failed", "oom"):
        return record | {
            "reason": "out of memory" if status == "oom" else "rank 1 died (SIGKILL)",
            "tail": ["Traceback:", "  <b>"],
        }
    p50 = 256e3 / rate
    record |= {"samples_per_s": rate, "step_ms_p50": p50, "step_ms_p90": p50 * draw.uniform(1.05, 1.2)}
    record |= {"memory_gib": 11.5, "data_ms": 1.2, "rank_spread_ms": 0.4}
    record["windows"] = [rate * draw.gauss(1, 0.015) for _ in range(6)]
    losses = [(step * 12800, 6.2 - 0.9 * step**0.5 + draw.gauss(0, 0.01)) for step in range(1, 7)]
    if status == "diverged":
        losses = [(samples, loss if place < 3 else loss * 1.4) for place, (samples, loss) in enumerate(losses)]
        losses[-1] = (losses[-1][0], None)  # type: ignore[assignment]
    return record | {"losses": losses}
