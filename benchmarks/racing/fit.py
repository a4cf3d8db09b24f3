"""Fits a model to each recorded sweep: what `paceline bench racing` draws its trials from.

    python -m benchmarks.racing.fit benchmarks/racing/recorded --out paceline/bench/racing_traces

log(rate of a window) = case + place in the trial (all trials see the same data in the same order) + drift of the machine (it comes
back to its mean in `drift_s`) + luck of the process + noise between windows (AR(1)) + accidents (a slow stretch, or a slow window).
Drift and luck are told apart by likelihood: drift is what neighbours in time share.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from paceline.files import write_text

_FAR = 3.5
"""robust deviations from which on a value is an outlier"""


def deviation(values: np.ndarray) -> float:
    """The standard deviation, as outliers would not have it."""
    return float(1.4826 * np.median(np.abs(values - np.median(values))))


def fit_windows(rows: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    """Means of trials, and the noise around them: `rows` has log rates, one row per trial, with the case's mean taken out."""
    place = np.median(rows - np.median(rows, axis=1, keepdims=True), axis=0)
    level = np.median(rows - place, axis=1)
    noise = rows - place - level[:, None]
    spread = deviation(noise)
    slow = noise < -_FAR * spread
    usual = np.clip(noise, -_FAR * spread, _FAR * spread)
    ar = float(np.clip((usual[:, 1:] * usual[:, :-1]).sum() / (usual**2).sum(), 0.0, 0.95))
    # An accident is a stretch of slow windows: what it costs the whole trial counts, not how many windows it touched.
    cost = level - -np.log(np.exp(-(rows - place)).mean(axis=1))
    far = cost > _FAR * deviation(cost)
    struck = far & (cost > 0.05)
    found = {
        "window_sd": spread,
        "window_ar": ar,
        "window_outlier_rate": float(slow[~struck].mean()),
        "window_outlier": float(-noise[~struck][slow[~struck]].mean()) if slow[~struck].any() else 0.0,
        "outlier_rate": float(struck.mean()),
        "outlier": float(cost[struck].mean()) if struck.any() else 0.0,
    }
    return level, found


def fit_trials(levels: np.ndarray, cases: np.ndarray, times: np.ndarray, within: float) -> dict[str, float]:
    """Luck of the process and drift of the machine, from the means of trials; `within`: what windows alone make them scatter."""
    centred = levels.copy()
    for case in set(cases.tolist()):
        centred[cases == case] -= np.median(centred[cases == case])
    # A case's own mean takes some of the scatter with it.
    repeats = len(levels) / len(set(cases.tolist()))
    centred *= np.sqrt(repeats / (repeats - 1))
    spread = deviation(centred)
    usual = np.clip(centred, -_FAR * spread, _FAR * spread)
    apart = np.abs(times[:, None] - times[None, :])
    best = (-np.inf, 0.0, 0.0, 60.0)
    for luck in spread * np.array([0.1, 0.3, 0.5, 0.7, 0.9, 1.1]):
        for drift in spread * np.array([0.0, 0.3, 0.5, 0.7, 0.9, 1.2]):
            for tau in (20.0, 60.0, 180.0, 600.0):
                cov = (luck**2 + within**2) * np.eye(len(usual)) + drift**2 * np.exp(-apart / tau)
                sign, logdet = np.linalg.slogdet(cov)
                score = -0.5 * (logdet + usual @ np.linalg.solve(cov, usual)) if sign > 0 else -np.inf
                best = max(best, (float(score), float(luck), float(drift), tau))
    return {"process_sd": best[1], "drift_sd": best[2], "drift_s": best[3]}


def fit(record: dict[str, Any]) -> dict[str, Any]:
    trials = [trial for trial in record["trials"] if trial["status"] == "ok"]
    cases = np.array([trial["case"] for trial in trials])
    # A learning rate is part of a case, but not of its pace.
    paces = [json.dumps({k: v for k, v in case.items() if k != "train.optimizer.lr"}) for case in record["cases"]]
    pace = np.array([sorted(set(paces)).index(paces[case]) for case in cases])
    rows = np.log(np.array([trial["windows"] for trial in trials]))
    for index in set(pace.tolist()):
        rows[pace == index] -= np.median(rows[pace == index], axis=(0, 1))
    levels, windows = fit_windows(rows)
    num_windows = rows.shape[1]
    within = windows["window_sd"] * np.sqrt((1 + windows["window_ar"]) / (1 - windows["window_ar"]) / num_windows)
    times = np.array([trial["began"] for trial in trials])
    rates = np.array([len(t["windows"]) / sum(1 / w for w in t["windows"]) for t in trials])
    means = np.array([np.median(np.log(rates[pace == index])) for index in sorted(set(pace.tolist()))])
    startups = np.array([trial["startup_s"] for trial in trials])
    counted = np.array([trial["losses"][-1][0] for trial in trials]) * record["steps"]
    counted = counted / (record["steps"] + record["warmup_steps"])
    endings = np.array([t["wall_s"] - t["startup_s"] for t in trials]) - counted / rates
    curve = np.median(np.array([t["losses"] for t in trials])[:, :, 1][_usual(record, cases)], axis=0)
    return {
        "v": 1,
        "name": record["name"],
        "trials": len(trials),
        **{key: record[key] for key in ("nproc", "steps", "warmup_steps", "window")},
        "samples_per_step": float(np.median(counted)) / record["steps"],
        "samples_per_s": float(np.exp(np.median(means))),
        "case_sd": float(means.std(ddof=1)),
        "startup_s": float(np.median(startups)),
        "startup_sd": deviation(np.log(startups)),
        "ending_s": float(np.median(endings)),
        **windows,
        **fit_trials(levels, pace, times, float(within)),
        "loss": [round(float(value), 4) for value in curve],
        "loss_sd": _loss_noise(curve),
    }


def _usual(record: dict[str, Any], cases: np.ndarray) -> np.ndarray:
    rates = [case.get("train.optimizer.lr") for case in record["cases"]]
    return np.array([rates[case] in (None, 0.005) for case in cases])


def _loss_noise(curve: np.ndarray) -> float:
    """Relative, of one window against its neighbours."""
    second = curve[1:-1] - (curve[:-2] + curve[2:]) / 2
    return float(deviation(second) / np.sqrt(1.5) / np.median(curve))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for path in sorted(given.recorded.glob("*.json")):
        fitted = fit(json.loads(path.read_text(encoding="utf-8")))
        rounded = {key: round(value, 5) if isinstance(value, float) else value for key, value in fitted.items()}
        write_text(given.out / path.name, json.dumps(rounded, indent=1) + "\n")
        print(json.dumps({key: value for key, value in rounded.items() if key != "loss"}))


if __name__ == "__main__":
    main()
