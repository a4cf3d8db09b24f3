"""How good predictions are, exact over all samples: of an action AUC, log loss and calibration, of lists of candidates HR@k, NDCG@k, MRR.

    measure_action(logits, labels)                {"auc": …, "log_loss": …, "calibration": …, "calibration_error": …}
    measure_lists(ranks, num_candidates, [10])    {"hr_10": …, "ndcg_10": …, "mrr": …}

Actions are judged by their log-odds rather than by probabilities: they do not saturate, so scores that differ stay different, and a loss
needs no clipping. A NaN among them makes all four metrics NaN, and a NaN is never a best evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.cores import cpu_count
from paceline.recipes.rank_metrics import compute_metrics
from paceline.recipes.tenrec.auc import auc

ACTION_METRICS = ("auc", "log_loss", "calibration", "calibration_error")
_PART = 1 << 17
"""rows whose probabilities exist at a time"""
_EDGES = np.arange(-12.0, 12.25, 0.5)
"""of the bins of the calibration error, in log-odds: of equal width there, so that actions of one in a thousand fill many bins, not one"""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass
class Fit:
    """Sums over rows: what log loss and calibration are made of."""

    num_rows: int = 0
    loss: float = 0.0
    predicted: Floats = field(default_factory=lambda: np.zeros(len(_EDGES) + 1))
    """by bin: the probabilities, summed"""
    happened: Floats = field(default_factory=lambda: np.zeros(len(_EDGES) + 1))
    """by bin: how often it happened"""

    def add(self, other: Fit) -> None:
        self.num_rows += other.num_rows
        self.loss += other.loss
        self.predicted += other.predicted
        self.happened += other.happened


def measure_action(logits: npt.NDArray[Any], labels: npt.NDArray[Any], threads: int | None = None) -> dict[str, float]:
    """All four metrics of one action.

    auc                 see `auc`; NaN without positives or without negatives
    log_loss            the mean of -log(probability of what happened), in nats, not clipped: infinite where an infinite score is wrong
    calibration         predicted over recorded: 1 is right, 2 promises twice as many as there are; NaN without positives
    calibration_error   the expected calibration error: |predicted - recorded| of each bin of log-odds, summed, over the rows
    """
    fit = fit_rows(logits, labels, threads)
    recorded = fit.happened.sum()
    num_rows = fit.num_rows or float("nan")
    return {
        "auc": auc(logits, labels, threads),
        "log_loss": fit.loss / num_rows,
        "calibration": float(fit.predicted.sum() / recorded) if recorded else float("nan"),
        "calibration_error": float(np.abs(fit.predicted - fit.happened).sum() / num_rows),
    }


def fit_rows(logits: npt.NDArray[Any], labels: npt.NDArray[Any], threads: int | None = None) -> Fit:
    """The sums of all rows: of parts of a fixed size, added in their order, so that threads cannot be seen in the digits."""
    assert logits.shape == labels.shape == (logits.size,), f"{logits.shape} log-odds, {labels.shape} labels"
    starts = range(0, len(logits), _PART)
    fit = Fit()
    with ThreadPoolExecutor(threads or cpu_count()) as pool:
        for part in pool.map(
            lambda start: _fit_part(logits[start : start + _PART], labels[start : start + _PART]), starts
        ):
            fit.add(part)
    return fit


def _fit_part(logits: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Fit:
    odds = logits.astype(np.float64)
    happened = labels.astype(np.float64)
    # exp of what is never positive: nothing overflows, and 1 - probability keeps its digits.
    small = np.exp(-np.abs(odds))
    # The log-odds against what happened: their softplus is its loss.
    against = np.where(happened > 0, -odds, odds)
    loss = float((np.maximum(against, 0) + np.log1p(small)).sum())
    predicted = np.where(odds >= 0, 1.0, small) / (1 + small)
    # From whole steps rather than by a search; NaN has no bin, and goes where its sums show it.
    steps = np.clip((odds - _EDGES[0]) / (_EDGES[1] - _EDGES[0]), -1, len(_EDGES) - 1)
    bins = np.floor(np.nan_to_num(steps, nan=-1.0)).astype(np.int64) + 1
    size = len(_EDGES) + 1
    counts = [np.asarray(np.bincount(bins, weights, size), np.float64) for weights in (predicted, happened)]
    return Fit(len(odds), loss, *counts)


def list_metric_names(top_k: Sequence[int]) -> list[str]:
    return [*(f"{name}_{k}" for k in top_k for name in ("hr", "ndcg")), "mrr"]


def measure_lists(ranks: Ints, num_candidates: int, top_k: Sequence[int]) -> dict[str, float]:
    """Means over the lists, NaN without any; MRR has no cut-off, but an answer that was not ranked (from rank `num_candidates` on) adds 0."""
    found = compute_metrics(ranks, num_candidates, [*top_k, num_candidates])
    return {name: found[name] for name in list_metric_names(top_k)[:-1]} | {"mrr": found[f"mrr_{num_candidates}"]}
