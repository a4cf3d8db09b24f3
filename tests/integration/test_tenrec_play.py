"""The whole procedure of two-stage recommendation as a person plays it: every phase with real ranks, P2 with what P1 found."""

from __future__ import annotations

import pytest

from paceline.config.source import read_layer
from paceline.files import read_json
from paceline.telemetry.reader import read_run

VARIED = ("data.negatives", "model.layers", "loss.smoothing")
SMALL = (
    "data.users=300",
    "data.items=150",
    "data.rows=12000",
    "P0.data.users=200",
    "P0.data.rows=6000",
    "P0.train.max_steps=30",
    "P1.data.users=200",
    "P1.data.rows=6000",
    "P1.train.max_steps_per_epoch=5",
    "P1.steps=12",
    "P1.warmup_steps=2",
    "retrieval.train.epochs=3",
    "retrieval.train.schedule.warmup_steps=2",
    "P2.train.epochs=2",
    "P2.train.schedule.warmup_steps=2",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_p0_to_p3_on_two_ranks_and_p2_trains_what_won_p1(paceline, tmp_path):
    out = tmp_path / "out"
    code, said, errors = paceline("play", "tenrec-cpu", *SMALL, "--out", str(out)).finish(timeout_s=850)
    assert code == 0, (said, errors)
    record = read_json(out / "playbook.json")
    assert {phase["state"] for phase in record["phases"]} == {"done"}
    phases = {phase["name"]: phase for phase in record["phases"]}

    sweep = read_json(out / "P1" / "sweep" / "sweep.json")
    values = [tuple(case["values"][key] for key in VARIED) for case in sweep["cases"]]
    assert sorted(values) == sorted([(15, 2, 0.1), (7, 2, 0.1), (15, 3, 0.1), (15, 2, 0.05)])
    (winner,) = [case for case in sweep["cases"] if case["name"] == (sweep["winner"] or sweep["best"])]

    trained = read_layer(out / "P2" / "run" / "config.yaml").entries
    assert {key: trained[key].value for key in VARIED} == winner["values"]
    used = {use["key"]: (use["from"], use["value"]) for use in phases["P2"]["uses"]}
    retrieval = out / "retrieval" / "run"
    assert used == {key: ("P1.best", winner["values"][key]) for key in VARIED} | {
        "evaluate.retrieval": ("retrieval.run", str(retrieval))
    }
    for run in (out / "P0" / "run", retrieval, out / "P2" / "run"):
        assert {attempt.world_size for attempt in read_run(run).run.attempts} == {2}
    assert phases["P3"]["results"]["equal"]
