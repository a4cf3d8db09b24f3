"""The examples of the SDK, run as they stand: a plain loop, a Hugging Face Trainer, a Lightning Trainer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.cli.main import run_command
from paceline.telemetry.reader import Run, read_run
from tests.integration.conftest import WITHOUT_GPU, Zygote

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
BLIND = """# Its host never sees the request.
import os
if os.environ["RANK"] == "1":
    from paceline.telemetry.sdk import scribe
    scribe.read_stop_request = lambda *_: None
"""


def assert_whole(run: Run, ranks: int, steps: int) -> None:
    """It says of itself what a native run would."""
    attempt = run.run.attempts[-1]
    assert (attempt.state, attempt.reason, attempt.step, attempt.world_size) == ("finished", "length", steps, ranks)
    assert run.events_of("warning") == []
    assert [row["step"] for row in run.metrics] == list(range(10, steps + 1, 10))
    assert run.metrics[-1]["samples"] == steps * 64 * ranks
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]
    assert all(row["step_ms"] > 0 and row["samples_per_s"] > 0 and row["lr"] > 0 for row in run.metrics)
    assert run.validation[-1]["step"] == steps
    for rank in range(ranks):
        last = run.beats(rank)[-1]
        assert (last["step"], last["phase"], last["attempt"]) == (steps, "end", attempt.attempt)


def test_a_plain_loop_on_one_rank_on_two_and_once_more(zygote: Zygote, tmp_path: Path) -> None:
    def train(name: str, ranks: int, steps: int) -> Run:
        argv = ["--out", str(tmp_path / name), "--steps", str(steps)]
        zygote.start(ranks, argv, tmp_path, script=EXAMPLES / "plain_loop.py")
        codes = zygote.wait(60)
        assert codes == [0] * ranks, [path.read_text() for path in tmp_path.glob("console_*.log")]
        return read_run(tmp_path / name)

    assert_whole(train("alone", 1, 50), 1, 50)
    first = train("two", 2, 50)
    assert_whole(first, 2, 50)
    assert first.validation[-1]["accuracy"] > 0.7
    again = train("two", 2, 80)
    assert_whole(again, 2, 80)
    assert [row["attempt"] for row in again.metrics] == [1] * 5 + [2] * 3
    assert again.run.attempts[1].changed == ["steps: 50 → 80"]
    assert all(again.metrics[-1][f"{phase}_ms"] > 0 for phase in ("data", "forward", "backward", "optimizer"))


def run_example(name: str, *arguments: str, cwd: Path) -> None:
    environment = WITHOUT_GPU | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=cwd, env=environment, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("module", "name", "more"),
    [("transformers", "hf_callback.py", []), ("lightning", "lightning_callback.py", ["--devices", "2"])],
)
def test_trainers_of_others_on_two_hosts_stop_at_one_step(
    tmp_path: Path, module: str, name: str, more: list[str]
) -> None:
    """Two processes here, each of which is told that it is alone on its host: then nothing but a collective keeps them in step."""
    pytest.importorskip(module, reason=f"{module} is not installed; `pip install -e '.[examples]'` brings it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"TORCHELASTIC_RUN_ID": "test", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    common["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    (tmp_path / "sitecustomize.py").write_text(BLIND)
    command = [sys.executable, str(EXAMPLES / name), "--out", "run", "--steps", "1000000", *more]
    ranks = []
    try:
        for rank in range(2):
            environment = WITHOUT_GPU | common | {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
            with open(tmp_path / f"console_{rank}.log", "w") as console:
                ranks.append(subprocess.Popen(command, stdout=console, stderr=console, cwd=tmp_path, env=environment))
        metrics, deadline = tmp_path / "run" / "metrics.csv", time.monotonic() + 100
        while not metrics.exists() and time.monotonic() < deadline and all(rank.poll() is None for rank in ranks):
            time.sleep(0.05)
        assert metrics.exists(), [path.read_text() for path in tmp_path.glob("console_*.log")]
        assert run_command(["stop", "--no-wait", str(tmp_path / "run")]) == 0
        codes = [rank.wait(timeout=40) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [0, 0], [path.read_text() for path in tmp_path.glob("console_*.log")]
    found = read_run(tmp_path / "run")
    assert (found.run.state, found.run.reason) == ("stopped", "stop_command")
    assert [found.beats(rank)[-1]["step"] for rank in range(2)] == [found.run.attempts[0].step] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "metric"),
    [("transformers", "hf_callback.py", "accuracy"), ("lightning", "lightning_callback.py", "val_accuracy")],
)
def test_a_trainer_of_others(tmp_path: Path, module: str, name: str, metric: str) -> None:
    reason = f"{module} is not installed; `pip install -e '.[examples]'` brings it"
    pytest.importorskip(module, reason=reason)
    run_example(name, "--out", "run", cwd=tmp_path)
    found = read_run(tmp_path / "run")
    assert_whole(found, 1, 60)
    assert [row["step"] for row in found.validation] == [30, 60]
    assert found.validation[-1][metric] > found.validation[0][metric] > 0.6
    assert sorted(os.listdir(tmp_path)) == ["run"]


EVALUATED = {
    "transformers": """
from hf_callback import *
settings = TrainingArguments("saves", max_steps=20, logging_steps=10, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
trainer = Trainer(Classifier(), settings, train_dataset=Points(512, 1), eval_dataset=Points(64, 2), callbacks=[PacelineCallback("run")])
trainer.evaluate(), trainer.train(), trainer.evaluate()
""",
    "lightning": """
from lightning_callback import *
class Other(Callback):
    def on_train_batch_end(self, *_):
        phases.add(callback._run._beat()["phase"])
phases, callback, model = set(), PacelineCallback("run"), Classifier(0.01)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = lightning.Trainer(accelerator="cpu", max_steps=20, callbacks=[callback, Other()], **quiet)
trainer.validate(model, generate(64, 2)), trainer.fit(model, generate(2048, 1), generate(64, 2)), trainer.validate(model, generate(64, 2))
assert phases == {"step"}, f"whatever others do between batches is no data: {phases}"
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("module", EVALUATED)
def test_an_evaluation_before_and_after_the_training_breaks_nothing(tmp_path: Path, module: str) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed; `pip install -e '.[examples]'` brings it")
    (tmp_path / "main.py").write_text(EVALUATED[module])
    environment = WITHOUT_GPU | {"PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLES}", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "main.py"],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = read_run(tmp_path / "run")
    assert (found.run.state, found.run.attempts[-1].step) == ("finished", 20)
    assert [row for row in found.validation if row["step"] == 0] == []
