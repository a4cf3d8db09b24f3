from __future__ import annotations

from pathlib import Path

from paceline.files import write_json
from paceline.playbook.kinds.pick import Pick, Tried, choose
from paceline.playbook.pace import Pace
from paceline.playbook.phase import Scene, Work
from tests.playbook.kinds.runs import write_run


def tried(name: str, mean: float, std: float | None, verdict: str = "slower") -> Tried:
    return Tried(name, verdict, Pace(mean, std, "items/s", 1, 50, 10, "units_per_s"), Path(name))


def test_the_highest_mean_wins_and_among_equals_the_steadiest() -> None:
    winner, why = choose([tried("25", 90, 1), tried("50", 100, 9), tried("100", 95, 1)], 0.01)
    assert winner is not None
    assert (winner.name, why) == ("50", "the highest mean, by more than 1.0%")
    winner, why = choose([tried("25", 99.5, 1), tried("50", 100, 9), tried("100", 95, 0)], 0.01)
    assert winner is not None
    assert (winner.name, why) == ("25", "the smallest deviation of the 2 whose means differ by less than 1.0%")


def test_who_diverged_or_has_no_rate_cannot_win() -> None:
    fast = tried("fused", 200, 0, "diverges")
    winner, why = choose([tried("plain", 90, 1), fast, Tried("none", "slower", None, Path("x"))], 0.01)
    assert winner is not None
    assert (winner.name, why) == ("plain", "the only case that came to an end with a pace")
    assert choose([fast], 0.01) == (None, "no case came to an end with a pace")


def test_one_row_has_no_deviation_to_win_by() -> None:
    winner, why = choose([tried("25", 99.5, None), tried("50", 100, None)], 0.01)
    assert winner is not None
    assert winner.name == "50"
    assert "one row, and no deviation" in why


def test_what_is_read_from_the_trials(tmp_path: Path) -> None:
    place = tmp_path / "sweep"
    rates = {"bucket_mb=25": (90.0, "ok"), "bucket_mb=50": (120.0, "ok"), "bucket_mb=100": (0.0, "oom")}
    cases, trials = [], []
    for number, (name, (rate, status)) in enumerate(rates.items()):
        write_run(place / f"trials/{number}", [{"units_per_s": rate}] * 12)
        verdict = "slower" if status == "ok" else "does not fit"
        cases.append({"name": name, "values": {"parallel.bucket_mb": number}, "rank": number, "verdict": verdict})
        trials.append({"case": name, "status": status, "is_counted": True, "directory": f"trials/{number}"})
    shared = {"winner": None, "best": "bucket_mb=25", "baseline": "bucket_mb=25", "is_decided": False, "sentence": ""}
    record = {"cases": cases, "trials": trials, "costs": {"device_s": 1.0}, "objective": {"name": "throughput"}}
    write_json(place / "sweep.json", shared | record | {"plan": {"margin": 0.01}})
    phase = Pick.model_validate({"kind": "pick", "plan": {"axes": {"parallel.bucket_mb": [25, 50, 100]}}, "window": 20})
    outcome = phase.read(Work([], place, {}))
    assert outcome.results == {
        "num_cases": 3,
        "failures": 1,
        "pace": 120.0,
        "pace_std": 0.0,
        "slowest_pace": 90.0,
        "winner": "bucket_mb=50",
    }
    # The window is the phase's, and the winner's values are found where its trial was run.
    assert outcome.sources["pace"] == "trials/1/metrics.csv, units_per_s, steps 41 to 60 (4 rows)"
    assert "sweep/sweep.json, at most the last 20 steps of each case: the highest mean" in outcome.sources["winner"]
    assert outcome.links["best"] == place / "trials/1/config.yaml"
    assert [row[-1] for row in outcome.tables[0].rows] == ["", "winner", "does not fit"]
    assert set(outcome.results) | {"seconds"} == set(phase.reports.names)


def test_every_case_is_tried_once_and_all_of_it(tmp_path: Path) -> None:
    phase = Pick.model_validate({"kind": "pick", "plan": {"axes": {"model.blocks": [1, 2]}, "steps": 30}})
    work = phase.plan_work(Scene("A", tmp_path / "A", 1, "sasrec", {"launch.gpus": []}))
    (text,) = work.files.values()
    assert "repeats: 1" in text
    assert "racing: false" in text
    assert phase.wins_by() == ("model.blocks",)
