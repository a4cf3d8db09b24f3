"""Two-stage recommendation on real ranks: the same losses on one and two, the same bits after a kill, and planted tastes that are found."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline.recipes.job import load_job
from paceline.recipes.tenrec.auc import auc
from paceline.recipes.tenrec.columns import ACTIONS
from paceline.recipes.tenrec.opening import open_data
from paceline.telemetry.reader import Run
from paceline.trained import load_model
from paceline.worker.model import evaluate_splits
from tests.integration.conftest import Started, Zygote, assert_same_bits

TINY = (
    "data.users=120",
    "data.items=90",
    "data.rows=3000",
    "model.width=16",
    "model.layers=1",
    "train.global_batch=37",
    "train.micro_batch=8",
    "train.epochs=null",
    "train.max_steps=8",
    "train.schedule.warmup_steps=2",
    "telemetry.log_every=1",
    "telemetry.heartbeat_s=0.2",
    "telemetry.tensorboard=false",
    "evaluate.every_epochs=null",
    "evaluate.every_steps=4",
    "evaluate.block=16",
    "checkpoint.every_epochs=null",
    "checkpoint.every_steps=2",
    "checkpoint.asynchronous=false",
    "parallel.timeout_s=30",
)
RANKER = ("data.negatives=7", "evaluate.negatives=9", "model.heads=1")
KINDS = {
    "transformer": ("tenrec", RANKER),
    "fastformer": ("tenrec", (*RANKER, "model.mixer=fastformer")),
    "in_batch": ("tenrec-retrieval", ()),
    "sampled": ("tenrec-retrieval", ("loss.negatives=sampled", "loss.num_sampled=20")),
}


def start(zygote: Zygote, folder: Path, ranks: int, kind: str, *overrides: str, name: str, plant: str = "") -> Started:
    config, own = KINDS[kind]
    console = folder / f"{name}-console"
    console.mkdir(exist_ok=True)
    given = {word.partition("=")[0] for word in overrides}
    words = [word for word in (*TINY, *own) if word.partition("=")[0] not in given]
    argv = [config, *words, *overrides, "--out", str(folder / name)]
    return Started(zygote, folder / name, zygote.start(ranks, argv, console, plant or None, False), console)


def train(zygote: Zygote, folder: Path, ranks: int, kind: str, *overrides: str, name: str) -> Run:
    started = start(zygote, folder, ranks, kind, *overrides, name=name)
    run = started.wait(500)  # a compiler takes its time on a CPU
    assert started.codes == [0] * ranks, started.text()
    return run


def assert_same_losses(run: Run, reference: Run, tolerance: float = 1e-5) -> None:
    for ours, theirs in zip(run.metrics, reference.metrics, strict=True):
        assert math.isclose(ours["loss"], theirs["loss"], rel_tol=tolerance), f"step {ours['step']}"


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", ["transformer", "in_batch"])
def test_ranks_and_a_kill(zygote: Zygote, tmp_path: Path, kind: str) -> None:
    alone = train(zygote, tmp_path, 1, kind, name="alone")
    spread = train(zygote, tmp_path, 2, kind, name="spread")
    assert_same_losses(spread, alone)
    # The metrics of both agree, and `paceline evaluate` finds the digits that the run logged.
    again = evaluate_splits(load_model(tmp_path / "spread"), "fp32")
    best = load_model(tmp_path / "spread").step
    for found in again["splits"]:
        (logged,) = [row for row in spread.validation if (row["step"], row["split"]) == (best, found["split"])]
        assert {name: logged[name] for name in found["metrics"]} == pytest.approx(
            found["metrics"], nan_ok=True, rel=1e-9
        )
    options = ("model.dropout=0.2", "data.num_workers=1")
    reference = train(zygote, tmp_path, 2, kind, *options, name="reference")
    killed = start(zygote, tmp_path, 2, kind, *options, name="killed", plant="kill:rank=1,step=6")
    killed.wait()
    assert -9 in killed.codes
    resumed = train(zygote, tmp_path, 2, kind, *options, name="killed")
    assert [event["start_step"] for event in resumed.events_of("plan")] == [0, 4]
    assert_same_bits(resumed, reference)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["fastformer", "sampled"])
def test_the_other_kinds_on_ranks(zygote: Zygote, tmp_path: Path, kind: str) -> None:
    alone = train(zygote, tmp_path, 1, kind, name="alone")
    for ranks in (2, 3):
        assert_same_losses(train(zygote, tmp_path, ranks, kind, name=f"on-{ranks}"), alone)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_every_stage_precision_and_the_compiler(zygote: Zygote, tmp_path: Path, kind: str) -> None:
    alone = train(zygote, tmp_path, 1, kind, name="alone")
    for stage in (1, 2, 3):
        assert_same_losses(
            train(zygote, tmp_path, 2, kind, f"parallel.zero_stage={stage}", name=f"zero-{stage}"), alone
        )
    assert_same_losses(train(zygote, tmp_path, 2, kind, "precision.mode=bf16", name="bf16"), alone, tolerance=0.05)
    compiled = train(zygote, tmp_path, 1, kind, "train.compile.enabled=true", name="compiled")
    assert_same_losses(compiled, alone, tolerance=1e-4)
    choices = {event["about"]: event["effective"] for event in compiled.events_of("choice")}
    assert choices["train.compile.enabled"] is True
    recomputed = train(zygote, tmp_path, 1, kind, "train.activation_checkpointing=true", name="recomputed")
    assert_same_losses(recomputed, alone, tolerance=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_planted_tastes_are_found_by_what_ships(zygote: Zygote, tmp_path: Path, seed: int) -> None:
    """The retrieval and the ranker as they ship, on data of that seed: 90 s of CPU time (2026-11-16)."""
    seeds = (f"run.seed={seed}", f"data.seed={seed}", "telemetry.tensorboard=false")

    def ship(config: str, name: str, *overrides: str) -> dict[str, float]:
        console = tmp_path / f"{name}-console"
        console.mkdir()
        argv = [config, *seeds, *overrides, "--out", str(tmp_path / name)]
        started = Started(zygote, tmp_path / name, zygote.start(1, argv, console, None, False), console)
        run = started.wait(800)
        assert started.codes == [0], started.text()
        (row,) = [row for row in run.validation if row["split"] == "test"]
        return row

    ship("tenrec-retrieval", "retrieval")
    found = ship("tenrec", "ranker", f"evaluate.retrieval={tmp_path / 'retrieval'}")
    opened = open_data(load_job("tenrec", list(seeds)).config.data)
    rows, table, truth = opened.split.test, opened.table, opened.truth
    assert truth is not None
    chances, labels = truth.probability(table.user[rows], table.item[rows]), table.labels(rows)
    for action, name in enumerate(ACTIONS):
        best = auc(chances[:, action], labels[:, action])
        assert found[f"auc_{name}"] - 0.5 >= 0.85 * (best - 0.5), name
    assert found["two_stage_planted_10"] >= 1.5 * found["retrieval_planted_10"]
    assert found["two_stage_planted_10"] >= 3 * found["popularity_planted_10"]
    assert found["two_stage_ndcg_10"] >= 3 * found["popularity_ndcg_10"]
