from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import UsageError
from paceline.files import write_json
from paceline.playbook.gate import judge
from paceline.playbook.kinds.sweep import SWEPT_KINDS, speed_up_criteria, swept_results
from paceline.playbook.swept import Swept, read_swept
from paceline.sweep.evidence import RaceSettings, TrialResult
from paceline.sweep.ranking import rank_cases


def sweep(directory: Path, cases: dict[str, dict[str, object]], objective: str = "throughput") -> Swept:
    listed = [
        {"name": name, "values": {}, "rank": place, "verdict": "slower"} | more
        for place, (name, more) in enumerate(cases.items(), 1)
    ]
    record = {"cases": listed, "trials": [], "winner": None, "best": listed[0]["name"], "baseline": "base"}
    record |= {"is_decided": False, "sentence": "", "costs": {"device_s": 1}, "objective": {"name": objective}}
    write_json(directory / "sweep.json", record)
    return read_swept(directory)


def ratios(ratio: float, low: float, high: float, speed: float) -> dict[str, object]:
    return {"ratio": ratio, "ratio_low": low, "ratio_high": high, "samples_per_s": speed}


FAST, BASE = ratios(1.0, 1.0, 1.0, 150.0), ratios(0.8, 0.7, 0.9, 100.0)


def test_the_speed_up_is_the_fitted_one_with_its_low_end(tmp_path: Path) -> None:
    results = swept_results(sweep(tmp_path, {"fast": FAST, "base": BASE}))
    not_numbers = {name: type(value) for name, value in results.items() if isinstance(value, bool | str)}
    assert not_numbers == SWEPT_KINDS  # what gates are checked by
    assert results["speed_up"] == pytest.approx(1 / 0.8 - 1)  # by the means it were 50 %
    assert results["speed_up_low"] == pytest.approx(1 / 0.9 - 1)


def test_the_winner_of_a_tie_is_compared_by_way_of_the_leader(tmp_path: Path) -> None:
    steady = ratios(0.99, 0.98, 1.01, 150.0)
    results = swept_results(sweep(tmp_path, {"steady": steady, "fast": FAST, "base": BASE}))
    assert results["speed_up"] == pytest.approx(0.99 / 0.8 - 1)
    assert results["speed_up_low"] == pytest.approx(0.98 / 0.9 - 1)


def test_a_baseline_that_wins_is_as_fast_as_itself(tmp_path: Path) -> None:
    results = swept_results(sweep(tmp_path, {"base": BASE, "fast": FAST}))
    assert (results["speed_up"], results["speed_up_low"]) == (0.0, 0.0)


def test_a_sweep_by_a_metric_knows_the_pace_by_its_means(tmp_path: Path) -> None:
    swept = sweep(tmp_path, {"fast": FAST, "base": BASE}, "ndcg_10")
    assert swept.speed_up(swept.winner, swept.baseline) == (0.5, None)
    ((text, why),) = speed_up_criteria(0.08, {"objective": "ndcg_10"})
    assert text == "speed_up >= 0.08"
    assert "no interval" in why


@pytest.mark.parametrize("verdict", ["diverges", "does not fit", "failed"])
def test_a_case_that_is_out_has_no_speed_up(tmp_path: Path, verdict: str) -> None:
    swept = sweep(tmp_path, {"base": BASE, "wild": {"verdict": verdict, "samples_per_s": 900.0}})
    assert swept.speed_up(swept.cases[1], swept.baseline) == (None, None)


@pytest.mark.parametrize(("wanted", "floor"), [(0.08, "0"), (0.0, "0"), (-0.05, "-0.05")])
def test_that_there_is_a_speed_up_must_be_certain(wanted: float, floor: str) -> None:
    texts = [text for text, _ in speed_up_criteria(wanted, {})]
    assert texts == [f"speed_up >= {wanted:g}", f"speed_up_low >= {floor}"]
    conditions = [(text, "") for text in texts]
    doubtful, certain = ({"speed_up": 0.3, "speed_up_low": low} for low in (-0.2, 0.1))
    assert [each.is_met for each in judge(conditions, doubtful, {}, {}, "")] == [True, False]
    assert [each.is_met for each in judge(conditions, certain, {}, {}, "")] == [True, True]


@pytest.mark.parametrize(("objective", "direction"), [("throughput", "max"), ("step_ms_p50", "min")])
def test_what_the_ranking_calls_a_ratio_is_what_is_read(tmp_path: Path, objective: str, direction: str) -> None:
    """A quarter more, or a fifth of the time less: 25 % faster."""
    paces = {"base": (100.0, 100.4, 99.6, 100.1), "fast": (125.0, 125.3, 124.6, 124.8)}
    trials = [
        TrialResult(name, round, "ok", pace, metric=1000 / pace)
        for name, values in paces.items()
        for round, pace in enumerate(values, 1)
    ]
    settings = RaceSettings(racing=False, repeats=4, objective=objective, direction=direction)
    ranking = rank_cases(list(paces), trials, "base", settings, is_final=True)
    found = {}
    for name in ranking.order:
        verdict = ranking.verdicts[name]
        fitted = {word: getattr(verdict, word) for word in ("ratio", "ratio_low", "ratio_high")}
        found[name] = {"samples_per_s": sum(paces[name]) / 4} | fitted
    swept = sweep(tmp_path, found, objective)
    share, low = swept.speed_up(*sorted(swept.cases, key=lambda case: case.name, reverse=True))
    assert share == pytest.approx(0.25, abs=0.02)
    assert low is not None
    assert 0.1 < low < share


def test_a_record_without_an_objective_is_refused(tmp_path: Path) -> None:
    sweep(tmp_path, {"base": BASE})
    write_json(tmp_path / "sweep.json", {"cases": [], "winner": None, "best": None, "baseline": None})
    with pytest.raises(UsageError, match="cannot be read"):
        read_swept(tmp_path)
