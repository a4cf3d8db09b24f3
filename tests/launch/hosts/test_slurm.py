"""A batch script for Slurm: what may be asked for, and the script really run by bash, with stand-ins for Slurm's programs."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.errors import ConfigError, UsageError
from paceline.launch.hosts.slurm import SlurmWish, build_script, limit_seconds, parse_slurm, submit
from paceline.telemetry.reader import read_run

ROOT = Path(__file__).parents[3]
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
echo "$@" >> srun.txt
exec "$@"
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then printf 'node-7\\nnode-8\\n'; else echo "$@" >> requeued.txt; fi
"""


def test_options_apart_or_together() -> None:
    wish = SlurmWish({"partition": "gpu", "time": "2:00:00"}, 2)
    assert parse_slurm(["partition=gpu time=2:00:00 nodes=2"]) == wish
    assert parse_slurm(["partition=gpu", "--time=2:00:00", "nodes=2"]) == wish
    assert parse_slurm(["gpus_per_node=8 exclusive signal=300"]) == SlurmWish(
        {"gpus-per-node": "8", "exclusive": ""}, 1, 300
    )


@pytest.mark.parametrize(
    ("words", "what", "do"),
    [
        ("partion=gpu", "knows no 'partion'", "did you mean partition?"),
        ("colour=red", "knows no 'colour'", "there are: account"),
        ("time=2h", "time=2h is not a time limit", "time=2:00:00"),
        ("nodes=two", "nodes=two is not a number", "nodes=2"),
        (f"nodes={'9' * 5000}", "is not a number", "nodes=2"),
        ("nodes=0", "nodes=0 is not a number", "nodes=2"),
        ("partition", "partition= cannot be used", "partition=VALUE"),
        ("partition=a;b", "partition=a;b cannot be used", "partition=VALUE"),
        ("partition=a partition=b", "given twice", "once"),
        ("exclusive=yes", "exclusive has no value", "--slurm exclusive"),
        ("signal=5", "signal=5 is not a number of seconds from 30", "signal=300"),
        ("output=x", "set by Paceline itself", "--dry-run"),
    ],
)
def test_what_cannot_be_asked_for(words: str, what: str, do: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_slurm([words])
    (problem,) = caught.value.problems
    assert (what in problem.what, do in problem.do) == (True, True), problem


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3", 180),
        ("3:30", 210),
        ("1:00:05", 3605),
        ("1-12", 129_600),
        ("1-0:30", 88_200),
        ("1-0:0:7", 86_407),
        ("0", 0),
    ],
)
def test_time_limits_as_sbatch_reads_them(text: str, seconds: int) -> None:
    assert limit_seconds(text) == seconds


def test_a_limit_so_short_that_the_job_would_queue_itself_for_ever() -> None:
    for words in ("time=2", "time=1:00", "time=5 signal=300"):
        with pytest.raises(UsageError, match="is to be asked"):
            parse_slurm([words])
    assert parse_slurm(["time=2 signal=30"]).signal_s == 30
    assert parse_slurm(["time=0"]).options == {"time": "0"}, "no limit at all"


def test_the_script_says_everything_to_slurm(tmp_path: Path) -> None:
    text = build_script(parse_slurm(["nodes=2 time=30 cpus-per-task=8 exclusive"]), ["train", "a b"], tmp_path / "run")
    lines = text.splitlines()
    for line in ("nodes=2", "time=30", "exclusive", "signal=B:USR1@120", "requeue", "open-mode=append"):
        assert f"#SBATCH --{line}" in lines
    assert f"#SBATCH --output={tmp_path}/run.slurm.log" in lines
    assert "train 'a b' --out" in text
    assert '--nnodes "$SLURM_NNODES" --rdzv "$first:$port"' in text
    assert "--kill-on-bad-exit=0 --cpus-per-task=8" in text
    assert "--rdzv" not in build_script(parse_slurm([]), ["train"], tmp_path)
    with pytest.raises(UsageError, match="a character in it"):
        build_script(parse_slurm([]), ["train"], tmp_path / "a b")


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], subprocess.Popen[str]]:
    """Runs a script as Slurm would, in a directory with its programs."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("sbatch", "#!/bin/sh\necho '4711;cluster'\n")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)

    def start(script: str) -> subprocess.Popen[str]:
        (tmp_path / "job.sbatch").write_text(script)
        job = {"SLURM_JOB_ID": "31007", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node-[7-8]"}
        environment = os.environ | job | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.Popen(
            ["bash", "job.sbatch"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )

    return start


@pytest.mark.timeout(60)
def test_the_hosts_meet_at_the_first_one_and_the_exit_code_is_kept(
    batch: Callable[[str], subprocess.Popen[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexit 5\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with batch(build_script(parse_slurm(["nodes=2"]), ["train", "nsa"], tmp_path / "run")) as job:
        assert job.wait(30) == 5
    asked = f"{tmp_path}/python -m paceline train nsa --out {tmp_path}/run --nnodes 2 --rdzv node-7:21007\n"
    assert (tmp_path / "srun.txt").read_text() == asked
    assert not (tmp_path / "requeued.txt").exists()


@pytest.mark.timeout(60)
def test_a_run_that_cannot_be_asked_is_queued_again_at_once(
    batch: Callable[[str], subprocess.Popen[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text('#!/bin/sh\n[ "$3" = stop ] && exit 2\necho $$ > up; exec sleep 20\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with batch(build_script(parse_slurm([]), ["train", "nsa"], tmp_path / "run")) as job:
        wait_for(lambda: (tmp_path / "up").exists(), job)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(15) == 0
        os.kill(int((tmp_path / "up").read_text()), signal.SIGKILL)  # as Slurm does with a job that it queues again
    assert (tmp_path / "requeued.txt").read_text() == "requeue 31007\n"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_before_the_limit_a_checkpoint_and_after_it_the_rest(
    batch: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    root = tmp_path / "runs" / "mine"
    words = ["train", "sasrec", "data.users=40", "data.items=30", "train.epochs=1000000"]
    script = build_script(parse_slurm(["time=1:00:00"]), words, root)
    ends = [0]
    for number in (1, 2):
        with batch(script) as job:
            wait_for(lambda: last_step(root) > ends[-1], job)
            job.send_signal(signal.SIGUSR1)
            output = job.communicate(timeout=60)[0]
        assert job.returncode == 0, output
        assert (tmp_path / "requeued.txt").read_text() == number * "requeue 31007\n"
        run = read_run(root).run
        assert [attempt.reason for attempt in run.attempts] == number * ["stop_command"]
        step = run.attempts[-1].step
        assert step is not None
        assert step > ends[-1]
        assert (root / "checkpoints" / f"step_{step:08d}").is_dir()
        ends.append(step)
    (begin,) = [event for event in read_run(root).events if event["kind"] == "resume"]
    assert begin["step"] == ends[1]


def last_step(root: Path) -> int:
    try:
        rows = list(csv.DictReader((root / "metrics.csv").read_text().splitlines()))
        return int(rows[-1]["step"])
    except (OSError, IndexError, KeyError, TypeError, ValueError):
        return -1


def wait_for(is_true: Callable[[], bool], job: subprocess.Popen[str], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not is_true():
        if time.monotonic() > deadline or job.poll() is not None:
            job.kill()
            raise AssertionError(job.communicate()[0])
        time.sleep(0.05)


def test_submitting(
    batch: Callable[[str], subprocess.Popen[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert submit(tmp_path / "job") == "4711"
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition: gpu' >&2; exit 1\n")
    with pytest.raises(UsageError, match="refuses the script: sbatch: error: invalid partition"):
        submit(tmp_path / "job")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="there is no sbatch here"):
        submit(tmp_path / "job")
