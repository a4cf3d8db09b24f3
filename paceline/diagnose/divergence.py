"""A training that goes wrong by its own numbers: rows of metrics.csv and events in, findings out.

judge_metrics(run.metrics, run.events)   -> [Finding("loss_spike", …), Finding("memory_growth", …)]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from paceline.diagnose.finding import Finding, Witness
from paceline.diagnose.memory import fit_growth, report_growth
from paceline.diagnose.rows import Row, read_number
from paceline.diagnose.spread import measure_spread
from paceline.telemetry.amount import show_amount

_BEGINNING = 0.1
"""of all steps so far: who does not know the rows before that cannot say that a loss has never fallen"""
_SOON = (5, 20)
"""rows within which a loss may fall to where it stays: by twice what chance makes of so few, it has fallen"""
_GROWN_S = 20.0
"""for which memory has to grow in a table: who watches the processes themselves says so before, and knows whose"""


@dataclass(frozen=True)
class DivergenceSettings:
    """From when on a curve is called names."""

    window: int = 20
    """rows before, which a row is compared with"""
    least: int = 10
    """of them, before anything is said"""
    spike_sigmas: float = 10.0
    spike_ratio: float = 1.5
    gradient_ratio: float = 30.0
    flat_rows: int = 30
    decay: float = 0.3
    decay_rows: int = 80
    gate_low: float = 0.01


def judge_metrics(
    rows: Sequence[Row],
    events: Sequence[Row],
    settings: DivergenceSettings | None = None,
    beginning: Sequence[Row] = (),
) -> list[Finding]:
    """Everything that the tables of a run say about it, each kind at most once.

    `beginning`: the first rows of the run, of whatever attempt, where `rows` are only the newest.
    """
    settings = settings or DivergenceSettings()
    rows, beginning = (
        [row for row in table if isinstance(row.get("attempt"), int) and isinstance(row.get("step"), int)]
        for table in (rows, beginning)
    )
    attempt = max((row["attempt"] for row in rows), default=None)
    last = [row for row in rows if row["attempt"] == attempt]
    judged = [
        _find_nonfinite(rows),
        _find_spike(rows, settings),
        _find_exploding(rows, settings),
        _find_zero_gradient(rows),
        _find_flat_loss(rows, beginning or rows, settings),
        _find_decay(last, settings),
        _find_growth(last),
        _find_gate_collapse(events, settings),
    ]
    return [finding for finding in judged if finding is not None]


def _find_nonfinite(rows: Sequence[Row]) -> Finding | None:
    """Once it is over it is a note: fp16 with a scaled loss overflows now and then, and leaves such steps out."""
    found = [row for row in rows if _is_bad(row.get("loss")) or _is_bad(row.get("grad_norm"))]
    if not found:
        return None
    bad, is_over = found[0], found[-1] is not rows[-1]
    said = f"loss {bad.get('loss')}, gradient norm {bad.get('grad_norm')}"
    since = (
        f"was not a number at step {bad['step']}, and later is"
        if is_over
        else f"is not a number from step {bad['step']} on, or before"
    )
    return Finding(
        "not_finite",
        f"the loss or the gradient {since} ({said})",
        "lower train.optimizer.lr, lengthen train.schedule.warmup_steps, set train.clip_norm=1.0, or precision.mode=fp32; paceline triage RUN tries them",
        severity="note" if is_over else "critical",
        step=bad["step"],
        since=read_number(bad, "time"),
        witnesses=(Witness("metrics", True, said),),
    )


def _find_spike(rows: Sequence[Row], settings: DivergenceSettings) -> Finding | None:
    """The highest loss beyond what the rows before it make likely; the first steps fall too fast to compare."""
    worst: tuple[float, Row, float] | None = None
    known: list[float] = []
    for row in rows:
        loss = read_number(row, "loss")
        if loss is None:
            continue
        before = known[-settings.window :]
        known.append(loss)
        if len(before) < settings.least:
            continue
        middle = median(before)
        is_far = loss > middle + settings.spike_sigmas * max(measure_spread(before), 1e-12)
        if is_far and loss > middle + (settings.spike_ratio - 1) * abs(middle):
            ratio = loss / abs(middle) if middle else math.inf
            if worst is None or ratio > worst[0]:
                worst = ratio, row, middle
    if worst is None:
        return None
    ratio, row, middle = worst
    after = [read_number(later, "loss") for later in rows if later["step"] > row["step"]]
    tail = [value for value in after if value is not None][-5:]
    has_recovered = bool(tail) and median(tail) < middle + 0.25 * (float(row["loss"]) - middle)
    end = "it came back" if has_recovered else "it has not come back"
    said = f"loss {row['loss']:.4g} at step {row['step']} after {middle:.4g}"
    return Finding(
        "loss_spike",
        f"the loss jumped to {ratio:.1f} times what it was ({said}); {end}",
        "set train.clip_norm=1.0, or a lower train.optimizer.lr with a longer warm-up; look at the samples of that step (telemetry.ledger=true)",
        severity="note" if has_recovered else "warning",
        step=row["step"],
        since=read_number(row, "time"),
        witnesses=(Witness("metrics", True, said),),
        numbers={"loss": float(row["loss"]), "before": middle},
    )


def _find_exploding(rows: Sequence[Row], settings: DivergenceSettings) -> Finding | None:
    known: list[float] = []
    for row in rows:
        norm = read_number(row, "grad_norm")
        if norm is None:
            continue
        before = known[-settings.window :]
        known.append(norm)
        middle = median(before) if len(before) >= settings.least else 0.0
        if middle > 0 and norm > settings.gradient_ratio * middle:
            said = f"gradient norm {norm:.3g} at step {row['step']} after {middle:.3g}"
            return Finding(
                "gradient_exploding",
                f"the gradient exploded: {said}",
                "set train.clip_norm=1.0 (or lower), and lower train.optimizer.lr",
                step=row["step"],
                since=read_number(row, "time"),
                witnesses=(Witness("metrics", True, said),),
                numbers={"grad_norm": norm, "before": middle},
            )
    return None


def _find_zero_gradient(rows: Sequence[Row]) -> Finding | None:
    norms = [(row, norm) for row in rows if (norm := read_number(row, "grad_norm")) is not None]
    tail = norms[-3:]
    if len(tail) < 3 or any(norm > 1e-12 for _, norm in tail):
        return None
    first = next((i for i in range(len(norms) - 1, -1, -1) if norms[i][1] > 1e-12), -1) + 1
    step = norms[first][0]["step"]
    since = "from the first step on" if first == 0 else f"since step {step}"
    return Finding(
        "gradient_zero",
        f"the gradient is zero {since}: nothing is learned any more",
        "look for a loss that does not depend on the parameters (detach, argmax, no_grad), frozen parameters, a learning rate or a mask of zeros",
        step=step,
        witnesses=(Witness("metrics", True, f"grad_norm 0 in {len(norms) - first} rows"),),
    )


def _find_flat_loss(rows: Sequence[Row], beginning: Sequence[Row], settings: DivergenceSettings) -> Finding | None:
    """A loss that has not fallen since the run began, or does not move at all."""
    known = [(row["step"], loss) for row in rows if (loss := read_number(row, "loss")) is not None]
    begun = [(row["step"], loss) for row in beginning if (loss := read_number(row, "loss")) is not None]
    losses = [loss for _, loss in known]
    has_begun_here = bool(known and begun) and begun[0][0] <= _BEGINNING * known[-1][0]
    if len(losses) >= 5 and len(set(losses[-5:])) == 1:
        said = f"exactly {losses[-1]:.6g} in the last 5 rows"
    elif len(losses) >= settings.flat_rows and has_begun_here:
        quarter = max(5, len(losses) // 4)
        first, last = [loss for _, loss in begun[:quarter]], losses[-quarter:]
        if _has_fallen(first, last, 0.1) or any(_has_fallen(first[:num], last, 2.5 / num**0.5) for num in _SOON):
            return None
        said = f"median {median(first):.4g} in the first quarter, {median(last):.4g} in the last"
    else:
        return None
    return Finding(
        "loss_flat",
        f"the loss does not fall: {said}, up to step {known[-1][0]}",
        "look at train.optimizer.lr (too small, or so large that it only bounces) and its schedule; check that labels belong to their samples; try to overfit one batch",
        step=known[-1][0],
        witnesses=(Witness("metrics", True, said),),
    )


def _has_fallen(first: Sequence[float], last: Sequence[float], least: float) -> bool:
    """By more than so many times what it wavers."""
    before = median(first)
    return before - median(last) > max(least * measure_spread(last), 1e-3 * abs(before))


def _find_decay(rows: Sequence[Row], settings: DivergenceSettings) -> Finding | None:
    """Throughput that falls for good: the last fifth lies wholly below the first, which began after the warm-up, and the middle between."""
    timed = [(row["step"], rate) for row in rows if (rate := read_number(row, "samples_per_s")) is not None][2:]
    if len(timed) < settings.decay_rows:
        return None
    fifth = len(timed) // 5
    rates = [rate for _, rate in timed]
    first, middle, last = sorted(rates[:fifth]), sorted(rates[2 * fifth : 3 * fifth]), sorted(rates[-fifth:])
    before, now = median(first), median(last)
    is_lower = last[-fifth // 10 - 1] < first[fifth // 10]
    if now > (1 - settings.decay) * before or not is_lower or not now <= 1.05 * median(middle) <= 1.1 * before:
        return None
    said = f"{show_amount(before)} samples/s at first, {show_amount(now)} at step {timed[-1][0]}"
    return Finding(
        "throughput_decay",
        f"the run has become {1 - now / before:.0%} slower: {said}",
        "look for what grows (memory, caches, a fragmented file), for GPU clocks that fell (finding throttled), and for another job on the machine",
        step=timed[-1][0],
        witnesses=(Witness("metrics", True, said),),
        numbers={"before": before, "now": now},
    )


def _find_growth(rows: Sequence[Row]) -> Finding | None:
    known = [
        (time, memory, row["step"])
        for row in rows
        if (time := read_number(row, "time")) is not None and (memory := read_number(row, "memory_gib")) is not None
    ]
    known = known[len(known) // 5 :]  # a warm-up is no leak
    if len(known) < 20:
        return None
    growth = fit_growth([time for time, _, _ in known], [memory for _, memory, _ in known])
    if growth is None or growth.over < _GROWN_S:
        return None
    return report_growth(growth, None, None, known[-1][2], known[0][0])


def _find_gate_collapse(events: Sequence[Row], settings: DivergenceSettings) -> Finding | None:
    """Of models that report gates: one that has closed, or that stands at its end, in the last three observations."""
    seen = [event for event in events if event.get("kind") == "observation" and isinstance(event.get("values"), dict)]
    if len(seen) < 3:
        return None
    for name in seen[-1]["values"]:
        # A share of collapsed gates that falls to nothing is good news.
        if "gate" not in name.lower() or "collapsed" in name.lower():
            continue
        values = [number for event in seen if (number := read_number(event["values"], name)) is not None]
        if len(values) < 3 or min(abs(value) for value in values[:1]) <= settings.gate_low:
            continue
        if all(abs(value) <= settings.gate_low for value in values[-3:]):
            said = f"{name}: {values[0]:.3g} at first, {values[-1]:.3g} now"
            return Finding(
                "gate_collapse",
                f"a gate of the model has closed: {said}",
                "give the gates a smaller learning rate or a penalty that keeps them open; compare with the branch left out",
                cause=name,
                step=seen[-1].get("step"),
                witnesses=(Witness("events", True, said),),
            )
    return None


def _is_bad(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
