"""A simulated machine with a sweep to run on it: trials drawn from what was fitted to a recorded sweep.

The truth of every cell is known here, so a replay can say who should have won. Kinds of sweeps, 36 cells each:
- gap: the two best are 1 to 3 % apart, the others behind as the recorded cases scatter; two cells do not fit.
- null: no cell differs from another.
- crossing: some cells start faster than they go on, some slower, the true winner among them; the two fastest cells of all
  train badly, one at once, one only late in the trial.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from importlib import resources

import numpy as np

from paceline.sweep.evidence import Assignment, RaceSettings, TrialResult

CELLS = 36
KINDS = ("gap", "null", "crossing")
WIDEST = 0.15
"""deviation between cells, at most: 36 of them 24 % apart would leave little to decide"""


@dataclass(frozen=True)
class Trace:
    """What was fitted to a recorded sweep; benchmarks/racing/fit.py says how. Noise is relative."""

    name: str
    nproc: int
    steps: int
    warmup_steps: int
    window: int
    samples_per_step: float
    samples_per_s: float
    case_sd: float
    startup_s: float
    startup_sd: float
    ending_s: float
    window_sd: float
    window_ar: float
    window_outlier_rate: float
    window_outlier: float
    process_sd: float
    drift_sd: float
    drift_s: float
    outlier_rate: float
    outlier: float
    loss: tuple[float, ...]
    loss_sd: float
    trials: int = 0
    v: int = 1

    def trial_noise(self) -> float:
        """Deviation of one whole trial from another of the same case, far apart in time; without its outliers."""
        windows = self.steps / self.window
        within = self.window_sd**2 * (1 + self.window_ar) / (1 - self.window_ar) / windows
        return math.sqrt(within + self.process_sd**2 + self.drift_sd**2)

    def scaled(self, noise: float) -> Trace:
        """The same machine, quieter or louder, so that a trial scatters by `noise`; accidents stay as bad as they were."""
        factor = noise / self.trial_noise()
        names = ("window_sd", "process_sd", "drift_sd")
        return replace(self, **{name: getattr(self, name) * factor for name in names})

    def settings(self) -> RaceSettings:
        return RaceSettings(steps=self.steps, warmup_steps=self.warmup_steps, window=self.window)


@dataclass(frozen=True)
class Cell:
    """One point of the matrix, as it truly is."""

    name: str
    log_rate: float
    early: float = 0.0
    """relative, at the first step; it fades with a sixth of a trial"""
    loss_rise: float = 0.0
    """relative, at the end of a trial"""
    rises_at: float = 0.0
    """share of the trial after which the loss rises"""
    fits: bool = True

    def truth(self, steps: int) -> float:
        """Log rate over a whole trial."""
        fade = steps / 6
        return self.log_rate + self.early * fade / steps * (1 - math.exp(-steps / fade))

    @property
    def is_sound(self) -> bool:
        return self.fits and self.loss_rise == 0.0


def load_traces() -> list[Trace]:
    folder = resources.files("paceline.bench") / "racing_traces"
    found = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".json"):
            values = json.loads(file.read_text(encoding="utf-8"))
            found.append(Trace(**values | {"loss": tuple(values["loss"])}))
    return found


def build_cells(trace: Trace, kind: str, rng: np.random.Generator, gap: float | None = None) -> list[Cell]:
    """36 cells; the first is the baseline."""
    names = [f"a={i // 9} b={i // 3 % 3} c={i % 3}" for i in range(CELLS)]
    center = math.log(trace.samples_per_s)
    if kind == "null":
        return [Cell(name, center) for name in names]
    spread = min(trace.case_sd, WIDEST)
    parts = [rng.normal(0, spread / math.sqrt(3), size) for size in (4, 3, 3)]
    rates = np.array([center + parts[0][i // 9] + parts[1][i // 3 % 3] + parts[2][i % 3] for i in range(CELLS)])
    rates += rng.normal(0, spread / 5, CELLS)
    order = np.argsort(-rates[1:]) + 1
    best, second = int(order[0]), int(order[1])
    rates[best] = max(rates[best], rates[0])
    rates[0] = min(rates[0], rates[best] - 0.03)
    rates[second] = rates[best] - (rng.uniform(0.01, 0.03) if gap is None else gap)
    others = [i for i in range(CELLS) if i not in (best, second)]
    rates[others] = np.minimum(rates[others], rates[second] - rng.uniform(0, 0.01, len(others)))
    cells = [Cell(name, float(rate)) for name, rate in zip(names, rates, strict=True)]
    if kind == "gap":
        for i in rng.choice(others[1:] if others[0] == 0 else others, 2, replace=False):
            if i:
                cells[i] = replace(cells[i], fits=False)
        return cells
    middle = [i for i in others if i]
    early = {best: -rng.uniform(0.02, 0.05), second: rng.uniform(0.02, 0.05)}
    early |= {int(i): rng.uniform(0.02, 0.06) * rng.choice([-1, 1]) for i in rng.choice(middle, 10, replace=False)}
    for i, size in early.items():
        # Its rate over a whole trial stays what it was.
        cells[i] = replace(cells[i], early=float(size), log_rate=cells[i].log_rate - float(size) / 6)
    bad = [i for i in middle if i not in early][-2:]
    top = cells[best].truth(trace.steps)
    cells[bad[0]] = replace(cells[bad[0]], log_rate=top + rng.uniform(0.02, 0.06), loss_rise=0.06, rises_at=0.0)
    cells[bad[1]] = replace(cells[bad[1]], log_rate=top + rng.uniform(0.02, 0.06), loss_rise=0.15, rises_at=0.6)
    return cells


class World:
    """A machine with its clock, on which trials run one after another."""

    def __init__(self, trace: Trace, cells: list[Cell], seed: int) -> None:
        self.trace = trace
        self.cells = {cell.name: cell for cell in cells}
        self.spent_s = 0.0
        self._clock_s = 0.0
        self._rng = np.random.default_rng(seed)
        self._drift = float(self._rng.normal(0, trace.drift_sd))

    def run(self, assignment: Assignment) -> TrialResult:
        trace, cell, rng = self.trace, self.cells[assignment.case], self._rng
        startup_s = trace.startup_s * math.exp(rng.normal(0, trace.startup_sd))
        startup_s += trace.ending_s if trace.ending_s > 0 else 0.0
        self._pass(startup_s, float(rng.normal(0, trace.drift_sd)))
        if not cell.fits:
            self.spent_s += startup_s * trace.nproc
            return TrialResult(
                cell.name, assignment.round, "oom", device_s=startup_s * trace.nproc, startup_s=startup_s
            )
        num_windows = max(assignment.steps // trace.window, 1)
        places = (np.arange(num_windows) + 0.5) * trace.window
        base = cell.log_rate + cell.early * np.exp(-places * 6 / trace.steps)
        base = base + rng.normal(0, trace.process_sd) + self._noise(num_windows)
        if rng.random() < trace.outlier_rate:
            base = base - rng.exponential(trace.outlier)
        samples = trace.samples_per_step * trace.window
        rates, seconds = [], 0.0
        for rate, fresh in zip(base.tolist(), rng.normal(0, trace.drift_sd, num_windows).tolist(), strict=True):
            pace = math.exp(rate + self._drift)
            rates.append(pace)
            self._pass(samples / pace, fresh)
            seconds += samples / pace
        device_s = (startup_s + seconds) * trace.nproc
        self.spent_s += device_s
        return TrialResult(
            cell.name,
            assignment.round,
            "ok",
            samples_per_s=samples * num_windows / seconds,
            losses=self._losses(cell, num_windows),
            windows=tuple(rates),
            device_s=device_s,
            devices=trace.nproc,
            startup_s=startup_s,
            steps=assignment.steps,
            time_s=self._clock_s - seconds / 2,
        )

    def _noise(self, count: int) -> np.ndarray:
        trace, rng = self.trace, self._rng
        fresh = rng.normal(0, trace.window_sd, count).tolist()
        noise = fresh[:1]
        rest = math.sqrt(1 - trace.window_ar**2)
        for value in fresh[1:]:
            noise.append(trace.window_ar * noise[-1] + rest * value)
        slow = rng.random(count) < trace.window_outlier_rate
        return np.array(noise) - slow * rng.exponential(trace.window_outlier or 1.0, count) * (trace.window_outlier > 0)

    def _losses(self, cell: Cell, num_windows: int) -> tuple[tuple[int, float], ...]:
        trace, rng = self.trace, self._rng
        shares = np.arange(1, num_windows + 1) * trace.window / trace.steps
        rise = cell.loss_rise * np.maximum(shares - cell.rises_at, 0.0) / (1 - cell.rises_at)
        places = np.minimum(np.arange(1, num_windows + 1), len(trace.loss) - 1)
        # All trials see the same data: what is left between them is a tenth of the noise between windows.
        losses = np.array(trace.loss)[places] * (1 + rise + rng.normal(0, trace.loss_sd / 10, num_windows))
        samples = np.round(shares * trace.steps * trace.samples_per_step).astype(int)
        return tuple(zip(samples.tolist(), losses.tolist(), strict=True))

    def _pass(self, seconds: float, fresh: float) -> None:
        self._clock_s += seconds
        keep = math.exp(-seconds / self.trace.drift_s)
        self._drift = keep * self._drift + math.sqrt(1 - keep**2) * fresh
