"""From trials to verdicts: the wrong winner of old, ties, guards, and cases that failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.sweep.evidence import RaceSettings, TrialResult
from paceline.sweep.ranking import rank_cases
from tests.sweep.trials import SETTINGS, trial

GRID = replace(SETTINGS, racing=False)
JITTER = (1.0, 1.002, 0.998, 1.001, 0.999)


def trials(case: str, rate: float, repeats: int = 4, **more: object) -> list[TrialResult]:
    shift = len(case) % len(JITTER)
    return [trial(case, rate * JITTER[(i + shift) % 5], i + 1, **more) for i in range(repeats)]


def test_iteration_time_across_micro_batches_does_not_choose_the_winner() -> None:
    """16 samples in 15.6 ms are 1,024 a second, 32 in 25 ms are 1,280: the shorter iteration is the slower case."""
    small = trials("micro=16", 1024, step_ms_p50=15.6)
    large = trials("micro=32x", 1280, step_ms_p50=25.0)
    ranking = rank_cases(["micro=16", "micro=32x"], small + large, "micro=16", GRID, is_final=True)
    assert ranking.order == ("micro=32x", "micro=16")
    assert ranking.verdicts["micro=32x"].verdict == "winner"
    slower = ranking.verdicts["micro=16"]
    assert slower.verdict == "slower"
    assert slower.ratio == pytest.approx(0.8, abs=0.01)
    assert slower.ratio_high is not None
    assert slower.ratio_high < 1


def test_a_worse_loss_cannot_win_however_fast() -> None:
    bad = tuple((step * 64, 4.0 if step < 70 else 4.6) for step in range(10, 101, 10))
    results = trials("base", 1000) + trials("fast", 1500, losses=bad) + trials("better", 1100)
    ranking = rank_cases(["base", "fast", "better"], results, "base", GRID, is_final=True)
    assert ranking.leader == "better"
    assert ranking.verdicts["fast"].verdict == "diverges"
    assert "loss +15.0%" in ranking.verdicts["fast"].evidence
    assert ranking.order[-1] == "fast"
    careless = rank_cases(["base", "fast", "better"], results, "base", replace(GRID, loss_tolerance=None))
    assert careless.leader == "fast"


def test_one_success_of_three_is_not_above_three_of_three() -> None:
    broken = [trial("flaky", 1200, 1), *(TrialResult("flaky", r, "failed") for r in (2, 3))]
    ranking = rank_cases(["base", "flaky"], trials("base", 1000, 3) + broken, "base", GRID, is_final=True)
    assert ranking.order == ("base", "flaky")
    assert ranking.leader == "base"
    assert not ranking.verdicts["flaky"].complete


@pytest.mark.parametrize("settings", [GRID, SETTINGS])
def test_a_case_with_nothing_but_a_failure_has_failed_when_nothing_more_will_run(settings: RaceSettings) -> None:
    results = [*trials("base", 1000), TrialResult("broken", 1, "failed")]
    verdicts = rank_cases(["base", "broken"], results, "base", settings, is_final=True).verdicts
    assert (verdicts["base"].verdict, verdicts["broken"].verdict) == ("winner", "failed")
    assert (verdicts["broken"].evidence, verdicts["broken"].complete) == ("failed in round 1", False)
    alone = rank_cases(["broken"], results[-1:], "broken", settings, is_final=True)
    assert alone.verdicts["broken"].verdict == "failed"
    # It gets another chance as long as there are any.
    assert rank_cases(["base", "broken"], results, "base", settings).verdicts["broken"].verdict == "undecided"


def test_what_cannot_run_has_a_verdict() -> None:
    results = [
        *trials("base", 1000),
        TrialResult("huge", 1, "oom"),
        TrialResult("nan", 1, "diverged"),
        *(TrialResult("broken", r, "failed") for r in (1, 2)),
        TrialResult("slow start", 1, "timeout"),
    ]
    cases = ["base", "huge", "nan", "broken", "slow start"]
    found = {case: v.verdict for case, v in rank_cases(cases, results, "base", GRID).verdicts.items()}
    assert found == {
        "base": "leads",
        "huge": "does not fit",
        "nan": "diverges",
        "broken": "failed",
        "slow start": "undecided",
    }


def test_certain_ties_go_to_the_steadier_and_then_to_the_smaller() -> None:
    unsteady = [trial("unsteady", 1001 * (1 + 0.002 * (-1) ** r), r) for r in range(40)]
    steady = [trial("steady", 1000 * (1 + 0.0002 * (-1) ** (r // 2)), r) for r in range(40)]
    ranking = rank_cases(["unsteady", "steady"], unsteady + steady, "steady", GRID, is_final=True)
    assert ranking.leader == "steady"
    assert ranking.verdicts["unsteady"].verdict == "tied"
    large = [replace(result, case="large", memory_gib=8.0) for result in steady]
    small = [replace(r, case="small", memory_gib=4.0, samples_per_s=(r.samples_per_s or 0) * 0.9995) for r in steady]
    assert rank_cases(["large", "small"], large + small, "large", GRID, is_final=True).leader == "small"


def test_what_is_not_known_is_not_claimed() -> None:
    few = [trial(case, rate, 1) for case, rate in (("a", 1000.0), ("b", 970.0))]
    assert rank_cases(["a", "b"], few, "a", GRID).verdicts["b"].verdict == "undecided"
    assert rank_cases(["a", "b"], [], "a", GRID).leader is None


def test_a_metric_to_be_made_small() -> None:
    settings = replace(GRID, objective="perplexity", direction="min")
    results = trials("a", 1000, metric=20.0) + trials("b", 900, metric=18.0)
    results = [replace(r, metric=(r.metric or 0) * (1 + 0.001 * (r.round % 3))) for r in results]
    ranking = rank_cases(["a", "b"], results, "a", settings, is_final=True)
    assert ranking.leader == "b"
    verdict = ranking.verdicts["b"]
    assert verdict.value == pytest.approx(18.0, rel=0.01)
    assert verdict.low is not None
    assert verdict.high is not None
    assert verdict.low < verdict.value < verdict.high


@pytest.mark.parametrize(("direction", "best"), [("max", "b"), ("min", "a")])
def test_a_metric_below_zero(direction: str, best: str) -> None:
    settings = replace(GRID, objective="log_likelihood", direction=direction)
    results = trials("a", 1000, metric=-2.0) + trials("b", 900, metric=-1.5)
    results = [replace(r, metric=(r.metric or 0) * (1 + 0.001 * (r.round % 3))) for r in results]
    ranking = rank_cases(["a", "b"], results, "a", settings, is_final=True)
    assert ranking.leader == best
    other = ranking.verdicts["a" if best == "b" else "b"]
    assert other.verdict == "slower"
    assert ranking.verdicts["b"].value == pytest.approx(-1.5, rel=0.01)
    assert other.ratio == pytest.approx(1 - 0.5 / 1.75, abs=0.01)


def test_a_small_batch_is_held_to_the_whole_tolerance() -> None:
    """A quarter of the samples in as many steps, and 5.5 % worse at each of them."""
    worse = tuple((step * 16, 4.0 * 1.055) for step in range(10, 101, 10))
    results = trials("batch=64", 1000) + trials("batch=16", 1500, losses=worse)
    ranking = rank_cases(["batch=64", "batch=16"], results, "batch=64", GRID, is_final=True)
    assert ranking.verdicts["batch=16"].verdict == "diverges"
    short = [replace(r, steps=20) for r in results]
    ranking = rank_cases(["batch=64", "batch=16"], short, "batch=64", GRID, lengths=dict.fromkeys(range(1, 5), 20))
    assert ranking.verdicts["batch=16"].verdict != "diverges"


@pytest.mark.parametrize("case", ["base", "fast"])
def test_a_loss_that_is_not_a_number_or_falls_silent_cannot_win(case: str) -> None:
    """The baseline's own, too; one trial of them is enough."""
    sound = trials("base", 1000) + trials("fast", 1500) + trials("better", 1200)
    silent = tuple((step * 64, 4.0) for step in range(10, 51, 10))
    broken = (*silent, (6400, float("nan")))
    for bad in ({"losses": broken}, {"losses": silent, "samples": 6400}):
        results = [replace(r, **bad) if (r.case, r.round) == (case, 2) else r for r in sound]
        ranking = rank_cases(["base", "fast", "better"], results, "base", GRID, is_final=True)
        assert ranking.verdicts[case].verdict == "diverges"
        assert ranking.leader == ("better" if case == "fast" else "fast")


@pytest.mark.parametrize(("objective", "best"), [("ndcg_10", "steady"), ("throughput", "wild")])
def test_a_low_metric_is_no_accident_of_the_machine(objective: str, best: str) -> None:
    wild, steady = (0.206, 0.205, 0.100, 0.205, 0.090), (0.200, 0.201, 0.199, 0.200, 0.200)
    results = [
        trial(case, value, round, metric=value)
        for case, values in (("wild", wild), ("steady", steady), ("third", (0.180, 0.181, 0.179, 0.180, 0.180)))
        for round, value in enumerate(values, 1)
    ]
    settings = replace(GRID, objective=objective, repeats=5)
    assert rank_cases(["steady", "wild", "third"], results, "steady", settings, is_final=True).leader == best


def test_nobody_wins_while_another_case_may_be_better() -> None:
    def verdicts_of(results: list[TrialResult], is_final: bool) -> list[str]:
        found = rank_cases(["a", "b"], results, "a", GRID, is_final=is_final).verdicts
        return [found[case].verdict for case in ("a", "b")]

    clear = trials("a", 1000) + trials("b", 900)
    assert verdicts_of(clear[:1], is_final=False) == ["leads", "undecided"]
    assert verdicts_of(clear, is_final=False) == ["leads", "slower"]
    assert verdicts_of(clear, is_final=True) == ["winner", "slower"]
    paces = {"a": (1000.0, 1060.0, 1010.0), "b": (1020.0, 990.0, 1000.0)}
    noisy = [trial(case, pace, r) for case, own in paces.items() for r, pace in enumerate(own, 1)]
    assert verdicts_of(noisy, is_final=False) == ["leads", "undecided"]
    assert verdicts_of(noisy, is_final=True) == ["leads", "tied"], "not told apart is no proof"
    assert verdicts_of([*trials("a", 1000), trial("b", 1000, 1)], is_final=True)[0] == "leads"


def test_the_leader_is_the_first_in_order() -> None:
    """A case that ran no more may have the larger estimate: it is not the one that was confirmed."""
    results = trials("a", 1000) + trials("b", 990) + trials("c", 980)
    ranking = rank_cases(["a", "b", "c"], results, "c", GRID, field={"b", "c"})
    assert (ranking.leader, ranking.order[0]) == ("b", "b")


def test_an_interval_that_says_nothing_is_not_told() -> None:
    """One trial each: the difference stands, what may be behind it has no bounds worth reading."""
    results = trials("a", 1000, repeats=1) + trials("b", 900, repeats=1)
    ranking = rank_cases(["a", "b"], results, "a", GRID, is_final=True)
    assert ranking.verdicts["b"].evidence == "-10.0% against the leader, which may be chance (1 trial)"
