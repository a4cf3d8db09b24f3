"""`paceline train` with a stand-in for the agent; the real workers are tried in tests/integration."""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from paceline.cli.main import run_command
from paceline.files import read_json
from paceline.telemetry.reader import read_run
from tests.launch.saved import save_checkpoint

AGENT = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
import psutil
from paceline.errors import DataError, PacelineError
from paceline.telemetry.events import EventLog
from paceline.telemetry.failure import format_failure
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.stop_request import write_stop_request
from paceline.telemetry.tables import METRICS_COLUMNS, Table
mode, config, _, out, _, attempt = sys.argv[1:7]
layout, attempt = RunLayout(Path(out)), int(attempt)
assert Path(config) == layout.config and layout.config.exists()
events = EventLog(layout.events, "rank 0", attempt)
if mode == "lost":      # the first two attempts die, and leave a process behind
    pids = layout.root / "pids"
    left = [int(pid) for pid in pids.read_text().split()] if pids.exists() else []
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in left), left
    if attempt < 3:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
        pids.write_text(" ".join(map(str, [*left, child.pid])))
        sys.exit(1)
    assert len(left) == 2
    mode = "finish"
if mode == "asked":     # somebody asks it to stop, and it dies on the way
    write_stop_request(layout.stop_request, attempt, "stop_command", "test")
    sys.exit(1)
if mode == "ctrl_c":
    os.kill(os.getppid(), signal.SIGINT)
    while not layout.stop_request.exists():
        time.sleep(0.02)
if mode in ("unforeseen", "ctrl_c"):
    record = PacelineError("KeyError: 'x'").to_record() | {"rank": 0, "step": 3, "secondary": False, "traceback": ""}
    print(format_failure(record), file=sys.stderr)
    sys.exit(1)
if mode == "data":
    record = DataError("line 3 is not a number", "a.txt:3", "repair it").to_record()
    print(format_failure(record | {"rank": 0, "step": None, "secondary": False, "traceback": "Traceback of the worker"}), file=sys.stderr)
    sys.exit(1)
if mode == "silent":
    print("something broke")
    sys.exit(1)
objective = {"metric": "ndcg_10", "direction": "max"}
events.write("plan", world_size=2, total_steps=2, steps_per_epoch=2, total_samples=8, start_step=0, objective=objective)
table = Table(layout.metrics, METRICS_COLUMNS)
for step in (1, 2):
    table.write({"attempt": attempt, "step": step, "loss": 4.0 / step, "samples_per_s": 100.0})
events.write("evaluation", split="validation", step=2, epoch=0, num_samples=9, metrics={"ndcg_10": 0.5})
reason = "early_stop" if mode == "early" else "finished"
events.write("end", state="finished", reason=reason, step=2)
"""


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Starts the stand-in where the agent would start; MODE says how it behaves."""
    script = tmp_path / "agent.py"
    script.write_text(AGENT)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("MODE", "finish")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def command(nproc: int, arguments: Sequence[str], *, rendezvous_id: str, scratch: Path, group: None) -> list[str]:
        assert nproc == 2
        return [sys.executable, str(script), os.environ["MODE"], *arguments]

    monkeypatch.setattr("paceline.cli.attempt.agent_command", command)
    return monkeypatch


def train(root: Path, *more: str) -> int:
    return run_command(["train", "sasrec", "--nproc", "2", "--gpus", "", "--out", str(root), *more])


def test_a_run_from_start_to_results(tmp_path: Path, agent: object, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "run"
    assert train(root) == 0
    output = capfd.readouterr().out
    assert "launch.omp_threads: auto →" in output
    assert "validation: ndcg_10 0.5" in output
    assert "2.0000" in output
    assert f"run: {root}" in output
    run = read_run(root)
    assert (run.run.state, run.run.attempts[0].exit_code, run.run.attempts[0].world_size) == ("finished", 0, 2)
    assert read_json(run.layout.origins)["launch.nproc"] == "flag --nproc"
    (start,) = run.events_of("start")
    assert "OMP_NUM_THREADS" in [note["name"] for note in start["environment"]]
    assert run.environment()["environment"]["OMP_NUM_THREADS"]

    assert train(root) == 0
    again = capfd.readouterr().out
    assert "already finished" in again
    assert "2.0000" in again
    assert len(read_run(root).run.attempts) == 1


def test_an_error_of_a_worker_is_the_error_of_the_command(
    tmp_path: Path, agent: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    agent.setenv("MODE", "data")
    assert train(tmp_path / "run") == 2
    error = capfd.readouterr().err
    assert "DataError: line 3 is not a number" in error
    assert "a.txt:3" in error
    assert "Traceback" not in error
    assert read_run(tmp_path / "run").run.state == "failed"
    assert train(tmp_path / "run", "--debug") == 2
    captured = capfd.readouterr()
    assert "Traceback of the worker" in captured.err
    assert "attempt 1 of this run ended (failed: line 3 is not a number)\n" in captured.out


def test_a_silent_failure_shows_the_last_lines(
    tmp_path: Path, agent: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    agent.setenv("MODE", "silent")
    assert train(tmp_path / "run") == 4
    assert "something broke" in capfd.readouterr().err


def states(root: Path) -> list[tuple[str, int | None]]:
    return [(attempt.state, attempt.exit_code) for attempt in read_run(root).run.attempts]


@pytest.mark.timeout(60)
def test_a_run_whose_ranks_die_is_brought_back(
    tmp_path: Path, agent: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "run"
    agent.setenv("MODE", "lost")
    agent.setattr("paceline.cli.attempt.new_rendezvous_id", lambda: f"test-{tmp_path}")
    agent.setenv("TORCHELASTIC_RUN_ID", f"test-{tmp_path}")
    assert train(root, "--max-restarts", "2") == 0
    assert states(root) == [("failed", 4), ("failed", 4), ("finished", 0)]
    run = read_run(root)
    restarts = run.events_of("restart")
    assert [(e["attempt"], e["source"], e["restart"], e["of"]) for e in restarts] == [
        (2, "launcher", 1, 2),
        (3, "launcher", 2, 2),
    ]
    assert all("without a word" in event["why"] for event in restarts)
    output = capfd.readouterr().out
    assert "restart 2 of 2:" in output
    assert "finished (3 attempts)" in output
    assert f"run: {root}" in output


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("mode", "exit_code", "attempts"), [("unforeseen", 4, 2), ("data", 2, 1), ("asked", 4, 1), ("ctrl_c", 4, 1)]
)
def test_no_more_restarts_than_asked_for_and_none_for_what_would_come_again(
    tmp_path: Path, agent: pytest.MonkeyPatch, mode: str, exit_code: int, attempts: int
) -> None:
    agent.setenv("MODE", mode)
    assert train(tmp_path / "run", "--max-restarts", "1") == exit_code
    assert states(tmp_path / "run") == [("failed", exit_code)] * attempts


def test_a_count_of_restarts_is_checked_like_any_value(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "run", "--max-restarts", "often") == 2
    assert "flag --max-restarts" in capfd.readouterr().err


def test_never_and_a_longer_run(tmp_path: Path, agent: object, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "run"
    assert train(root, "--resume", "never") == 0
    assert train(root, "--resume", "never") == 2
    assert "OccupiedError: the directory holds a run already" in capfd.readouterr().err
    assert train(root, "--resume", "auto", "train.epochs=900") == 0
    assert len(read_run(root).run.attempts) == 2


def test_a_fork_from_the_command_line(tmp_path: Path, agent: object, capfd: pytest.CaptureFixture[str]) -> None:
    root, new = tmp_path / "run", tmp_path / "new"
    assert train(root) == 0
    saved = save_checkpoint(root, 2, read_run(root).run.identity["values"])
    assert train(new, "--resume", str(saved), "run.seed=7") == 2
    assert "run.seed: 0 → 7" in capfd.readouterr().err
    assert not new.exists()
    assert train(new, "--resume", str(saved), "train.clip_norm=3", "--dry-run") == 0
    lines = capfd.readouterr().out.splitlines()
    assert f"begins        from step 2 of {saved}" in lines
    assert shlex.split(lines[-1])[-2:] == ["--resume", str(saved)]
    assert not new.exists()
    assert train(new, "--resume", str(saved), "train.clip_norm=3") == 0
    parent = read_run(new).run.parent
    assert parent is not None
    assert (parent["step"], parent["changed"]) == (2, ["train.clip_norm: 1.0 → 3.0"])
    assert "train.clip_norm: 1.0 → 3.0" in capfd.readouterr().out


def test_another_runs_weights_make_another_run(
    tmp_path: Path, agent: object, capfd: pytest.CaptureFixture[str]
) -> None:
    root, new = tmp_path / "run", tmp_path / "new"
    assert train(root) == 0
    saved = save_checkpoint(root, 2)
    assert train(new, "--init-from", str(root)) == 0
    run = read_run(new).run
    assert run.init_from is not None
    assert run.init_from["path"] == str(saved)
    assert run.identity["values"]["init.weights"] == run.init_from["digest"]
    assert train(new, "--init-from", str(root)) == 0
    assert "already finished" in capfd.readouterr().out
    assert train(new) == 2
    assert "init.weights: " in capfd.readouterr().err
    assert train(new, "--init-from", str(root), "--resume", str(root)) == 2
    assert "not both" in capfd.readouterr().err


def test_early_stop_is_a_success(tmp_path: Path, agent: pytest.MonkeyPatch) -> None:
    agent.setenv("MODE", "early")
    assert train(tmp_path / "run") == 0
    assert read_run(tmp_path / "run").run.reason == "early_stop"


def test_another_configuration_does_not_mix_in(
    tmp_path: Path, agent: object, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run") == 0
    assert train(tmp_path / "run", "run.seed=7") == 2
    assert "run.seed: 0 → 7" in capfd.readouterr().err


def test_refused_before_anything_is_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "run"
    assert train(root, "launch.env.NCCL_SOKET_IFNAME=eth0", "parallel.backend=nccl") == 2
    error = capfd.readouterr().err
    assert "NCCL_SOCKET_IFNAME" in error
    assert "needs a GPU" in error
    assert not root.exists()
    assert run_command(["train", "sasrec", "--gpus", "99"]) == 2
    assert "asks for GPU 99" in capfd.readouterr().err


def test_an_agent_that_cannot_be_started_closes_the_books(tmp_path: Path, agent: pytest.MonkeyPatch) -> None:
    agent.setattr("paceline.cli.attempt.agent_command", lambda *_, **__: [str(tmp_path / "no-such-program")])
    assert train(tmp_path / "run") == 4
    run = read_run(tmp_path / "run").run
    assert (run.state, run.attempts[0].exit_code) == ("failed", 4)


def test_another_start_with_other_settings_says_and_records_them(
    tmp_path: Path, agent: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    agent.setenv("MODE", "silent")
    assert train(tmp_path / "run") == 4
    agent.setenv("MODE", "finish")
    assert train(tmp_path / "run", "precision.mode=bf16", "telemetry.log_every=7") == 0
    changed = ["precision.mode: auto → bf16 (numerics)", "telemetry.log_every: 10 → 7"]
    assert "; ".join(changed) in capfd.readouterr().out
    assert read_run(tmp_path / "run").run.attempts[1].changed == changed


@pytest.mark.usefixtures("agent")
def test_dry_run_says_what_a_real_start_would(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "run"
    assert train(root) == 0
    (root / "checkpoints" / "step_00000012").mkdir(parents=True)
    assert train(root, "--dry-run") == 0
    assert "begins        after step_00000012, if that is whole" in capfd.readouterr().out
    assert train(root, "--dry-run", "--resume", "never") == 2
    assert train(root, "--dry-run", "run.seed=5") == 2
    assert "run.seed: 0 → 5" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("flags", "do"),
    [
        (("--resume", ""), "give a path"),
        (("--init-from", ""), "give a path"),
        (("--resume", "Auto"), "write auto"),
        (("--resume", "NEVER"), "write never"),
    ],
)
def test_a_word_that_is_no_path(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], flags: tuple[str, str], do: str
) -> None:
    assert train(tmp_path / "run", *flags) == 2
    assert do in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_dry_run_prints_a_command_and_touches_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "run"
    assert train(root, "--dry-run", "launch.env.NCCL_BLOCKING_WAIT=1") == 0
    lines = capfd.readouterr().out.splitlines()
    assert not root.exists()
    assert any("NCCL_BLOCKING_WAIT, its old name" in line for line in lines)
    words = shlex.split(lines[-1])
    assert words[:2] == ["cd", str(Path.cwd())]
    assert "TORCH_NCCL_BLOCKING_WAIT=1" in words
    assert words[words.index("-m", words.index("-m") + 1) :][:3] == ["-m", "paceline.worker", "sasrec"]
    assert words[-2:] == ["--out", str(root)]
    assert words[words.index("--nproc-per-node") + 1] == "2"
    assert not any(word.startswith("launch.") for word in words)


@pytest.mark.parametrize("is_file", [False, True])
def test_the_command_of_a_dry_run_finds_its_configuration(
    is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One that ships with the package goes by its name, a file by its whole path: the line is pasted anywhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("recipe: sasrec\n")
    target, more = ("mine.yaml", []) if is_file else ("nsa-125m", ["data.source=synthetic", "data.path=null"])
    assert run_command(["train", target, *more, "--dry-run", "--out", str(tmp_path / "run")]) == 0
    words = shlex.split(capfd.readouterr().out.splitlines()[-1])
    assert words[words.index("paceline.worker") + 1] == (str(tmp_path / "mine.yaml") if is_file else "nsa-125m")


def test_dry_run_with_several_hosts_prints_a_line_for_each_role(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "run"
    assert train(root, "--dry-run", "--nnodes", "1:3", "--rdzv", "127.0.0.1:29500") == 0
    lines = capfd.readouterr().out.splitlines()
    assert "hosts         1:3, meeting at 127.0.0.1:29500; this one is 127.0.0.1 (lo)" in lines
    roles = [lines[index + 1] for index, line in enumerate(lines) if line.startswith("command of the ")]
    assert [shlex.split(line)[shlex.split(line).index("--node-rank") + 1] for line in roles] == ["0", "1", "2"]
    assert all("GLOO_SOCKET_IFNAME=lo" in line and "--rdzv-backend static" in line for line in roles)
    assert not root.exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--nnodes", "2"], "launch.nnodes=2 needs a place where the hosts meet"),
        (["--rdzv", "a:1"], 'launch.rdzv="a:1" has no effect with launch.nnodes=1'),
        (["--nnodes", "2", "--rdzv", "nowhere"], "'nowhere' is not HOST:PORT"),
        (["--nnodes", "3:2", "--rdzv", "127.0.0.1:29500"], "at least 3 hosts and at most 2"),
        (["--nnodes", "two", "--rdzv", "127.0.0.1:29500"], "launch.nnodes"),
        (["--nnodes", "2", "--rdzv", "no-such-host.invalid:29500"], "no-such-host.invalid"),
        (["--nnodes", "2", "--rdzv", "127.0.0.1:29500", "launch.interface=eht7"], "eht7"),
    ],
)
def test_hosts_that_cannot_be_are_refused_before_anything_begins(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], what: str
) -> None:
    assert train(tmp_path / "run", *words) == 2
    assert what in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.fixture
def few_files() -> Iterator[None]:
    """A limit of open files that is really low; low enough for a warning."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
def test_warnings_about_the_machine_are_said_once_and_recorded(
    tmp_path: Path, agent: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    agent.setenv("MODE", "unforeseen")
    assert train(tmp_path / "run", "--max-restarts", "1") == 4
    lines = capfd.readouterr().out.splitlines()
    (line,) = [line for line in lines if "open files" in line]
    assert line.startswith("warning: open files: 300 per process")
    assert "; ulimit -n" in line
    (seen,) = read_run(tmp_path / "run").events_of("preflight")
    assert (seen["attempt"], seen["source"], seen["status"]) == (1, "launcher", "warn")
    found = {check["name"]: check["status"] for check in seen["checks"]}
    assert found["open files"] == "warn"
    assert found["loopback"] == "ok"


def test_a_machine_that_would_break_it_is_refused(
    tmp_path: Path, agent: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    agent.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    agent.setenv("MODE", "silent")
    assert train(tmp_path / "run", "--max-restarts", "3") == 3
    error = capfd.readouterr().err
    assert "PreflightError: interface: GLOO_SOCKET_IFNAME=nosuch0" in error
    assert "do:    unset GLOO_SOCKET_IFNAME" in error
    assert states(tmp_path / "run") == [("failed", 3)]


def test_no_torch_on_the_operators_side(tmp_path: Path) -> None:
    code = (
        "import sys; from paceline.cli.main import run_command\n"
        f"code = run_command(['train', 'sasrec', '--dry-run', '--out', {str(tmp_path / 'r')!r}])\n"
        "import paceline.launch.session, paceline.launch.progress, paceline.launch.results, paceline.cli.stop\n"
        "assert code == 0 and 'torch' not in sys.modules, code"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)
