"""`paceline preflight` as a person types it; its ranks are in tests/integration/test_probe.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli import preflight
from paceline.cli.main import run_command
from paceline.errors import DataError, PacelineError
from paceline.files import Lock
from paceline.preflight.check import Check, ok


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def look(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Check]]:
    code = run_command(["preflight", *arguments, "--json"])
    record = json.loads(capsys.readouterr().out)
    assert (code == 3) == (record["status"] == "fail")
    fields = ("name", "status", "found", "remedy")
    return code, {check["name"]: Check(*(check[field] for field in fields)) for check in record["checks"]}


def test_the_machine_alone_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = look(capsys, "--quick", "--nproc", "2")
    assert code == 0
    assert {"Python", "torch", "GPUs", "memory", "loopback", "room", "pulses"} <= set(found)
    assert not {"data", "batches", "earlier run", "collective"} & set(found)
    assert "2 ranks" in found["cores"].found
    assert list(tmp_path.iterdir()) == []


def test_a_table_with_the_remedies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    assert run_command(["preflight", "sasrec", "--quick", "--nproc", "2", "--out", "taken/run"]) == 3
    output = capsys.readouterr().out
    words = " ".join(output.replace("│", " ").split())  # lines of a table break anywhere
    assert "a file stands where a" in words
    assert "DIR" in words
    assert "64 = 32 + 32 samples on 2 ranks" in words
    assert "training would break here: " in output
    assert "1 fail" in output


def test_what_fails_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data that is not there, a GPU that is not there, a directory that is taken."""
    code, found = look(capsys, "sasrec", "--quick", "data.path=nothing.dat")
    assert (code, found["data"].status) == (3, "fail")
    code, found = look(capsys, "sasrec", "--quick", "--gpus", "93")
    assert (code, found["GPUs asked for"].status) == (3, "fail")
    (tmp_path / "run").mkdir()
    lock = Lock(tmp_path / "run" / ".owner.lock")
    assert lock.acquire()
    code, found = look(capsys, "sasrec", "--quick", "--out", "run")
    lock.release()
    assert (code, found["earlier run"].status) == (3, "fail")
    assert "just starting" in found["earlier run"].found


def test_a_wrong_key_is_a_usage_error_as_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["preflight", "sasrec", "train.epoch=3"]) == 2
    assert "train.epochs" in capsys.readouterr().err
    assert run_command(["preflight", "--nproc", "none"]) == 2
    assert "flag --nproc" in capsys.readouterr().err
    assert run_command(["preflight", "train.epochs=3"]) == 2
    assert "name the recipe first" in capsys.readouterr().err


def test_sizes_and_ranks_where_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"num_parameters": 10**6, "num_train": 1000}
    monkeypatch.setattr(preflight, "ask_sizes", lambda target, overrides: sizes)
    monkeypatch.setattr(preflight, "check_ranks", lambda subject: [ok("collective", f"{subject.world_size} ranks")])
    code, found = look(capsys, "sasrec", "--nproc", "2")
    assert (code, found["collective"].found) == (0, "2 ranks")
    assert "1,000 training samples" in found["data"].found
    assert "checkpoints take 68.7 MiB" in found["room"].found
    code, found = look(capsys, "sasrec", "data.path=nothing.dat")
    assert (code, found["collective"].status) == (3, "warn")
    assert "not tried" in found["collective"].found


@pytest.mark.parametrize(
    ("error", "status"), [(DataError("line 3", "a:3", "mend"), "fail"), (PacelineError("?"), "warn")]
)
def test_data_that_only_a_worker_can_judge(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: PacelineError, status: str
) -> None:
    def refuse(target: str, overrides: list[str]) -> None:
        raise error

    monkeypatch.setattr(preflight, "ask_sizes", refuse)
    monkeypatch.setattr(preflight, "check_ranks", lambda subject: [])
    code, found = look(capsys, "sasrec")
    assert (code, found["data and model"].status) == (3 if status == "fail" else 0, status)


def test_without_torch_it_says_so() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "from paceline.cli.main import run_command; sys.exit(run_command(['preflight', 'sasrec']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert "pip install torch" in done.stdout
    assert "not tried" in done.stdout


def test_a_script_of_its_own_is_not_asked_for_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "mine.yaml").write_text("recipe: command\ncommand: {argv: [python, train.py]}\n")
    monkeypatch.setattr(preflight, "ask_sizes", lambda target, overrides: pytest.fail("nobody knows"))
    monkeypatch.setattr(preflight, "check_ranks", lambda subject: [])
    code, found = look(capsys, "mine.yaml")
    assert (code, "data and model" in found) == (0, False)


def test_a_snapshot_is_kept_beside_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "write_snapshot", lambda place: (tmp_path / "asked").write_text(str(place)))
    look(capsys, "--quick", "--snapshot", "kept")
    assert (tmp_path / "asked").read_text() == "kept"


def test_several_hosts_need_both_flags_and_only_what_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    for words, what in (
        (["--nnodes", "2"], "several hosts need --nnodes and --rdzv"),
        (["--rdzv", "node-a:29500"], "several hosts need --nnodes and --rdzv"),
        (["--interface", "eth0"], "several hosts need --nnodes and --rdzv"),
        (["--nnodes", "two", "--rdzv", "node-a:29500"], "'two' is not a number of hosts"),
        (["--nnodes", "2", "--rdzv", "node-a"], "'node-a' is not HOST:PORT"),
    ):
        assert run_command(["preflight", "--quick", *words]) == 2
        assert what in capsys.readouterr().err


def test_a_host_that_never_comes_ends_the_wait(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = look(capsys, "--quick", "--nnodes", "2", "--rdzv", "127.0.0.1:29878", "--wait", "1")
    assert (code, found["hosts"].status) == (3, "fail")
    assert "1 of 2 did not come to 127.0.0.1:29878 within 1 s" in found["hosts"].found


def test_the_hosts_of_a_configuration_are_checked_and_flags_win(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "two.yaml"
    config.write_text("recipe: sasrec\nlaunch:\n  nnodes: 2\n  rdzv: 127.0.0.1:29879\n")
    code, found = look(capsys, str(config), "--quick", "--wait", "1")
    assert (code, "1 of 2 did not come to 127.0.0.1:29879" in found["hosts"].found) == (3, True)
    _, found = look(capsys, str(config), "--quick", "--wait", "1", "--rdzv", "127.0.0.1:29880", "--nnodes", "3")
    assert "2 of 3 did not come to 127.0.0.1:29880" in found["hosts"].found
    _, found = look(capsys, str(config), "--quick", "--nnodes", "1")
    assert "hosts" not in found
    assert run_command(["preflight", str(config), "launch.interface=eht0", "--quick", "--wait", "1"]) == 2
    assert "there is no interface eht0" in capsys.readouterr().err
