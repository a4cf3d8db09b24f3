"""Who gets which samples of a step where their lengths are known: those of one micro-step are alike long, on every rank.

lengths 9 1 5 8 2 6, two ranks, two micro-steps:   rank 0: [9] [6, 1]   rank 1: [8] [5, 2]

Longest first, so that memory runs out at once or never; within a micro-step dealt to the ranks to and fro, so that none has all the longer
ones. It follows from the lengths and the plan alone: every rank finds the same, and so does a resumed run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from paceline.config.arithmetic import BatchPlan
from paceline.errors import UsageError
from paceline.workload import Contrasts, Draw, Measured, SampleSet, Workload

Measure = Callable[[np.ndarray, int], np.ndarray]
"""the lengths of the samples of a step, by its batch and epoch"""


def find_measure(workload: Workload, samples: SampleSet, seed: int) -> Measure | None:
    """None where nothing is known of lengths, or where a loss could depend on who is in which micro-step."""
    if not (isinstance(workload, Contrasts) and isinstance(samples, Measured)):
        return None
    measured: Measured = samples

    def measure(batch: np.ndarray, epoch: int) -> np.ndarray:
        ids = tuple(batch.tolist())
        lengths = np.asarray(measured.lengths(ids, Draw(seed, epoch, ids)))
        if lengths.shape != batch.shape:
            kind = type(measured)
            what = f"{len(ids)} samples have lengths of shape {lengths.shape}"
            raise UsageError(what, f"{kind.__module__}.{kind.__qualname__}.lengths", "return one number per sample")
        return lengths

    return measure


def deal(lengths: np.ndarray, plan: BatchPlan) -> np.ndarray:
    """Which sample of the batch (by its position) is at each place that `plan.slice` hands out."""
    longest_first = np.argsort(-lengths, kind="stable")
    slices = np.array([plan.slice(len(lengths), rank) for rank in range(plan.world_size)])  # (rank, micro-step, bound)
    places = np.concatenate([_deal_micro_step(*slices[:, index].T) for index in range(plan.accumulate)])
    dealt = np.empty(len(lengths), dtype=np.int64)
    dealt[places] = longest_first
    return dealt


def _deal_micro_step(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The places of all ranks in the order in which they are filled: one of each rank, to and fro."""
    rounds = np.arange((ends - starts).max())[:, None]
    places, is_there = starts + rounds, starts + rounds < ends
    for table in (places, is_there):
        table[1::2] = table[1::2, ::-1].copy()
    found: np.ndarray = places[is_there]
    return found
