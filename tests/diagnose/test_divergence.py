"""A training that goes wrong by its own numbers; and ordinary ones, of which nothing is said."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from paceline.diagnose.divergence import judge_metrics

SEEDS = range(300, 320)


def rows(seed: int, num: int = 120, **change: Any) -> list[dict[str, Any]]:
    """An ordinary run: a falling, noisy loss; `change` maps a column to a function of (index, value)."""
    dice = random.Random(seed)
    made = []
    for index in range(num):
        row: dict[str, Any] = {
            "attempt": 1,
            "step": 10 * (index + 1),
            "loss": 2.0 + 5 * math.exp(-index / 30) + dice.gauss(0, 0.15),
            "grad_norm": math.exp(dice.gauss(0, 0.5)),
            "samples_per_s": 1000 * dice.uniform(0.9, 1.05) * (0.8 if dice.random() < 0.05 else 1),
            "memory_gib": 3.0 + min(index, 10) * 0.1 + dice.gauss(0, 0.01),
            "time": 1e9 + 5.0 * index,
        }
        for column, function in change.items():
            row[column] = function(index, row[column])
        made.append(row)
    return made


def kinds(made: list[dict[str, Any]], events: list[dict[str, Any]] | None = None) -> dict[str, int | None]:
    return {finding.kind: finding.step for finding in judge_metrics(made, events or [])}


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_said_of_an_ordinary_run(seed: int) -> None:
    assert kinds(rows(seed)) == {}
    assert kinds(rows(seed, num=3)) == {}
    assert kinds([]) == {}


def test_not_a_number_has_its_first_step() -> None:
    made = rows(1, loss=lambda index, loss: math.nan if index >= 50 else loss)
    assert kinds(made)["not_finite"] == 510
    (found,) = judge_metrics(made[:60], [])
    assert found.severity == "critical"
    (found,) = judge_metrics(rows(1, grad_norm=lambda index, norm: math.inf if index == 7 else norm), [])
    assert (found.kind, found.step, found.severity) == ("not_finite", 80, "note"), (
        "a scaled loss overflows now and then"
    )


def test_a_spike_is_told_and_whether_it_came_back() -> None:
    (found,) = judge_metrics(rows(2, loss=lambda index, loss: 3 * loss if index == 60 else loss), [])
    assert (found.kind, found.step, found.severity) == ("loss_spike", 610, "note")
    found, *_ = judge_metrics(rows(2, loss=lambda index, loss: 3 * loss if index >= 100 else loss), [])
    assert (found.kind, found.severity) == ("loss_spike", "warning")
    assert "has not come back" in found.what


def test_gradients_that_explode_or_vanish() -> None:
    assert kinds(rows(3, grad_norm=lambda index, norm: 500.0 if index == 40 else norm)) == {"gradient_exploding": 410}
    assert kinds(rows(3, grad_norm=lambda index, norm: 0.0)) == {"gradient_zero": 10}
    assert kinds(rows(3, grad_norm=lambda index, norm: 0.0 if index > 80 else norm)) == {"gradient_zero": 820}


def test_a_loss_that_never_falls_is_flat_and_one_that_has_fallen_is_not() -> None:
    dice = random.Random(4)
    assert "loss_flat" in kinds(rows(4, loss=lambda index, loss: 7.0 + dice.gauss(0, 0.1)))
    assert "loss_flat" in kinds(rows(4, loss=lambda index, loss: loss if index < 100 else 2.5))
    assert "loss_flat" not in kinds(rows(4, num=2000))
    assert "loss_flat" not in kinds(rows(4, num=2000)[-1000:]), "it has fallen before: where it ends says nothing"


def test_the_newest_rows_are_compared_with_the_first_of_the_run() -> None:
    """Of a resumed run, or a long one: it fell at once, and has been near its end for nine tenths of the time."""
    dice = random.Random(4)
    made = rows(4, num=1400, loss=lambda index, loss: 2 + 5 * math.exp(-index / 3) + dice.gauss(0, 0.1))
    assert "loss_flat" in kinds(made[130:]), "who sees no more than that cannot know"
    assert judge_metrics(made[130:], [], beginning=made[:200]) == []
    assert "loss_flat" not in kinds(made), "most of it is flat"
    flat = rows(4, num=1400, loss=lambda index, loss: 7.0 + dice.gauss(0, 0.1))
    (found,) = judge_metrics(flat[130:], [], beginning=flat[:200])
    assert found.kind == "loss_flat"
    assert judge_metrics(flat[130:], [], beginning=[{}, *flat[1300:]]) == [], "its beginning is not known"


def test_throughput_that_decays_and_a_dip_that_does_not() -> None:
    assert "throughput_decay" in kinds(rows(5, samples_per_s=lambda index, rate: rate * (1 - 0.5 * index / 120)))
    assert kinds(rows(5, samples_per_s=lambda index, rate: rate * (0.5 if 60 < index < 80 else 1))) == {}


def test_memory_that_grows_has_its_slope_and_a_warm_up_is_none() -> None:
    (found,) = judge_metrics(rows(6, memory_gib=lambda index, memory: 3 + 0.02 * index), [])
    assert found.kind == "memory_growth"
    assert found.numbers["gib_per_hour"] == pytest.approx(14.4, rel=0.05)
    assert kinds(rows(6, memory_gib=lambda index, memory: 3 + (2 if index > 70 else 0))) == {}
    fast = {"time": lambda index, time: 1e9 + 0.1 * index, "memory_gib": lambda index, memory: 3 + 0.02 * index}
    assert kinds(rows(6, **fast)) == {}, "of a few seconds"


def test_a_gate_that_closes_is_told() -> None:
    def observed(*values: float, name: str = "block_0_gate") -> list[dict[str, Any]]:
        return [{"kind": "observation", "step": i, "values": {name: v, "other": 0.0}} for i, v in enumerate(values)]

    assert "gate_collapse" in kinds(rows(7), observed(0.5, 0.2, 0.005, 0.002, 0.001))
    assert kinds(rows(7), observed(0.5, 0.2, 0.1, 0.4, 0.3)) == {}
    assert kinds(rows(7), observed(0.01, 0.01, 0.01, 0.01)) == {}  # it began closed
    assert kinds(rows(7), observed(0.5, 0.0, 0.0, 0.0, name="gate_collapsed")) == {}, "fewer heads than before"


def test_rows_of_a_foreign_writer_do_no_harm() -> None:
    made = [{"attempt": 1, "step": 1}, {"attempt": None, "step": 2, "loss": "x"}, {"loss": math.nan}, {}]
    assert kinds(made, [{"kind": "observation"}, {}]) == {}
