"""DeepSpeed trains what DDP trains, at every stage; its checkpoints travel to torch's stages and back, and are exact where they stay."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.telemetry.reader import Run, read_run
from tests.integration.conftest import (
    HARD,
    WITHOUT_GPU,
    Zygote,
    assert_same_bits,
    evaluations,
    losses,
    start_in,
    tiny,
)
from tests.integration.test_sharding import COMMON, assert_close

pytest.importorskip("deepspeed", reason="deepspeed is not installed (pip install 'paceline[deepspeed]')")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

DEEPSPEED = "parallel.engine=deepspeed"


@pytest.fixture(scope="module")
def plain(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """DDP on 2 ranks."""
    started = start_in(zygote, tmp_path_factory.mktemp("plain"), 2, *COMMON)
    run = started.wait()
    assert started.codes == [0, 0], started.text()
    return run


@pytest.fixture
def run_deep(zygote: Zygote, tmp_path: Path) -> Callable[..., Run]:
    """Like run_ranks, with DeepSpeed; `codes` are the exit codes that the ranks must have."""
    zygote.bring("deepspeed", DS_ACCELERATOR="cpu")

    def run(ranks: int, *overrides: str, codes: list[int] | None = None, **options) -> Run:
        started = start_in(zygote, tmp_path, ranks, *overrides, **options)
        result = started.wait(150)
        shown = "\n".join(started.text(rank) for rank in range(ranks))
        assert started.codes == (codes or [0] * ranks), shown
        return result

    return run


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_two_ranks_train_what_ddp_trains(run_deep, plain, stage):
    overrides = [*COMMON, DEEPSPEED, f"parallel.zero_stage={stage}", "parallel.bucket_mb=3"]
    if stage == 3:  # else every weight of so small a model stays gathered
        overrides.append("parallel.deepspeed.zero_optimization.stage3_param_persistence_threshold=0")
    run = run_deep(2, *overrides)
    assert_close(run, plain)
    assert run.events_of("choice", about="parallel.zero_stage")[0]["effective"] == stage
    assert run.events_of("choice", about="strategy")[0]["effective"] == "deepspeed"
    assert run.events_of("choice", about="parallel.engine")[0]["effective"] == "deepspeed"
    notes = [note["what"] for note in run.events_of("note")]
    assert "parallel.bucket_mb has no effect here" in notes
    assert any("gathers the whole model" in what for what in notes) == (stage == 3)


def test_a_checkpoint_travels(run_deep, plain):
    """DeepSpeed's stage 1 on 2 ranks, 3 on 3, torch's stage 3 on 2, DeepSpeed's 2 on 2, 0 on 3, one rank: one training."""
    legs = [(2, 1, 8), (3, 3, 16), (2, -3, 24), (2, 2, 32), (3, 0, 40), (1, 0, 50)]
    began = 0
    for number, (ranks, stage, steps) in enumerate(legs):
        engine = DEEPSPEED if stage >= 0 and ranks > 1 else "parallel.engine=torch"
        overrides = (*COMMON, "checkpoint.every_steps=12", f"parallel.zero_stage={abs(stage)}", engine)
        run = run_deep(ranks, *overrides, plant=f"request:rank=0,step={steps}" if steps < 50 else None)
        (plan,) = run.events_of("plan")[number:]
        assert plan["start_step"] == began
        began = run.run.attempts[-1].step
    assert run.run.attempts[2].changed == ["parallel.engine: deepspeed → torch (numerics)"]
    assert_close(run, plain)


def test_a_value_that_deepspeed_refuses(run_deep):
    setting = "parallel.deepspeed.zero_optimization.reduce_bucket_size=0"
    run = run_deep(2, DEEPSPEED, "parallel.zero_stage=2", setting, "train.max_steps=2", codes=[2, 2])
    (problem,) = run.events_of("failure")[0]["problems"]
    assert "reduce_bucket_size: Input should be greater than 0" in problem["what"]
    assert problem["where"] == "parallel.deepspeed"


def test_a_loss_that_is_not_a_number_is_left_out_on_all_ranks(run_deep):
    """With plain SGD, which forgives no wrong factor; in the first step, too, before the optimizer has made any."""
    overrides = (
        "train.max_steps=6",
        "train.nonfinite=skip",
        "train.optimizer.name=sgd",
        "train.optimizer.lr=0.5",
        "train.optimizer.momentum=0.9",
        "model.mhc=true",
        "model.blocks=2",
        "train.micro_batch=7",
        "evaluate.every_steps=4",
    )
    settings = [("parallel.engine=torch", 3), *((DEEPSPEED, stage) for stage in (0, 2, 3)), (DEEPSPEED, 1)]
    runs = []
    for number, (engine, stage) in enumerate(settings):
        step = 1 if number == 4 else 3
        run = run_deep(
            2, *overrides, engine, f"parallel.zero_stage={stage}", name=f"run-{number}", plant=f"nan:rank=1,step={step}"
        )
        (warning,) = run.events_of("warning")
        assert "not finite on rank 1" in warning["where"]
        assert [math.isnan(row["loss"]) for row in run.metrics] == [row["step"] == step for row in run.metrics]
        runs.append(run)
    for run in runs[1:4]:
        for ours, theirs in zip(losses(run), losses(runs[0]), strict=True):
            assert math.isclose(ours[1], theirs[1], rel_tol=1e-5) or ours[0] == 3, (ours, theirs)
        assert evaluations(run) == evaluations(runs[0])
    assert runs[4].metrics[-1]["loss"] < runs[4].metrics[1]["loss"]


def test_a_loss_that_is_not_a_number_stops_all_ranks(run_deep):
    overrides = ("train.max_steps=6", DEEPSPEED, "parallel.zero_stage=2")
    run = run_deep(2, *overrides, codes=[4, 4], plant="nan:rank=1,step=3")
    assert "step 3 was not applied" in run.events_of("failure")[0]["problems"][0]["what"]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_three_ranks_killed_end_with_the_same_bits(run_deep, stage):
    overrides = (*HARD, "train.max_steps=12", DEEPSPEED, f"parallel.zero_stage={stage}", "parallel.timeout_s=20")
    overrides = (*overrides, "train.activation_checkpointing=true")
    if stage < 3:
        overrides = (*overrides, "train.optimizer.ema=0.9")
    reference = run_deep(3, *overrides, name="reference")
    started = ("checkpoint.asynchronous=false", "parallel.check_every=3")
    run_deep(3, *overrides, *started, plant="kill:rank=1,step=7", codes=[4, -9, 4])
    run = run_deep(3, *overrides)
    assert run.events_of("plan")[1]["start_step"] in (4, 5)
    assert_same_bits(run, reference)


def test_under_the_launcher_of_deepspeed(tmp_path):
    """It hands each rank --local_rank, and no LOCAL_WORLD_SIZE; in bf16, which is autocast, not DeepSpeed's own."""
    overrides = tiny("train.max_steps=20", DEEPSPEED, "parallel.zero_stage=2", "precision.mode=bf16")
    launcher = [sys.executable, str(Path(sys.executable).with_name("deepspeed")), "--num_accelerators", "2"]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [*launcher, "--master_port", str(port), "--module", "paceline.worker", "sasrec", *overrides]
    root = Path(__file__).parents[2]
    environment = WITHOUT_GPU | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = read_run(tmp_path / "run")
    assert run.run.attempts[0].world_size == 2
    assert run.events_of("choice", about="precision.mode")[0]["effective"] == "bf16"
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]


def test_the_command_says_which_device_deepspeed_is_told(paceline, tmp_path):
    environment = {name: value for name, value in (os.environ | WITHOUT_GPU).items() if name != "DS_ACCELERATOR"}
    arguments = ("train", "sasrec", *tiny("train.max_steps=3", DEEPSPEED, "parallel.zero_stage=1"), "--nproc", "2")
    code, out, err = paceline(*arguments, "--out", str(tmp_path / "run"), env=environment).finish(300)
    assert code == 0, out + err
    (choice,) = read_run(tmp_path / "run").events_of("choice", about="DS_ACCELERATOR")
    assert choice["effective"] == "cpu"
