"""The operator's side never imports torch, and needs no numpy to start: it works where neither is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.rooms import PACKAGE, module_names
from tests.recipes.csa.tones import build_tree

ROOMS = (
    "errors",
    "files",
    "parentage",
    "telemetry",
    "config",
    "workload",
    "launch",
    "reports",
    "preflight",
    "sweep",
    "playbook",
    "cli",
)
pytestmark = pytest.mark.timeout(120)

IMPORT_ALL = """
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy"):
            asked.append((name, current))
            raise ModuleNotFoundError(f"{name} is not here", name=name)

asked = []
sys.meta_path.insert(0, Refuse())
for current in sys.argv[1:]:
    try:
        importlib.import_module(current)
    except ImportError as error:
        print(f"{current}: {error}")
for name, module in asked:
    print(f"{module} asked for {name}")
"""
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None     # an import fails, and looking for it finds nothing
from paceline.cli.main import run_command
code = run_command(sys.argv[1:])
sys.stdout.flush()
loaded = [name for name, module in sys.modules.items() if module and name.partition(".")[0] in ("torch", "numpy")]
assert not loaded, loaded
sys.exit(code)
"""


def operator_modules() -> list[str]:
    recipes = [module_name for module_name in module_names() if module_name.startswith("paceline.recipes.")]
    configs = [name for name in recipes if name.endswith(".config") or name.count(".") == 2]
    own = [name for name in module_names() if name.count(".") and name.split(".")[1] in ROOMS]
    return [*own, *configs]


def run(code: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=cwd, env=environment, check=False)


def test_the_list_is_what_it_should_be() -> None:
    modules = operator_modules()
    for expected in ("paceline.errors", "paceline.recipes.job", "paceline.recipes.registry", "paceline.cli.launching"):
        assert expected in modules
    assert "paceline.recipes.sasrec.config" in modules
    assert "paceline.recipes.sasrec.recommender" not in modules
    assert not [name for name in modules if name.startswith(("paceline.engine", "paceline.worker"))]


def test_no_module_of_the_operator_plane_asks_for_torch_or_numpy() -> None:
    done = run(IMPORT_ALL, *operator_modules())
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_data_is_prepared_without_torch_or_numpy(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("1\t2\t3\t881250949\n1\t3\t3\t881250950\n")
    done = run(WITHOUT_TORCH, "prepare", "movielens", "--from", "u.data", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "next: paceline train sasrec" in done.stdout


def test_text_is_prepared_without_torch_or_numpy(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "document {number}"}}\n' for number in range(40)))
    done = run(WITHOUT_TORCH, "prepare", "fineweb", "--from", "a.jsonl", "--validation-share", "0.3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "next: paceline train nsa" in done.stdout


def test_speech_is_prepared_without_torch(tmp_path: Path) -> None:
    build_tree(tmp_path / "in")
    words = "prepare librispeech --input in --output out --trim --workers 2"
    with_numpy = WITHOUT_TORCH.replace(' = sys.modules["numpy"]', "").replace(', "numpy")', ",)")
    done = run(with_numpy, *words.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "wrote and verified 8 files" in done.stdout


def test_a_report_is_written_without_torch_or_numpy(tmp_path: Path) -> None:
    done = run(WITHOUT_TORCH, "report", str(PACKAGE.parent / "tests" / "data" / "run-v1"), "--out", "x", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x" / "report.html").exists()


def test_the_engine_would_be_noticed() -> None:
    done = run(IMPORT_ALL, "paceline.engine.step")
    assert "paceline.engine.step asked for torch" in done.stdout


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("--help", "Commands:"),
        ("prepare movielens --help", "--from FILE"),
        ("prepare fineweb --help", "--from PATH"),
        ("prepare librispeech --help", "--input DIR"),
        ("prepare tenrec --help", "--max-users N"),
        ("train --help", "KEY=VALUE"),
        ("sweep --help", "PLAN"),
        ("play --help", "PLAYBOOK"),
        ("play p0-p3 launch.gpus=[] --dry-run", "P2 (train)"),
        ("stop --help", "RUN"),
        ("evaluate --help", "RUN"),
        ("export --help", "RUN"),
        ("recommend --help", "RUN"),
        ("report --help", "DIR"),
        ("explain --help", "KEY=VALUE"),
        ("preflight --help", "KEY=VALUE"),
        ("bench --help", "sharding"),
        ("explain sasrec train.max_steps=900 --nproc 2", "override 'train.max_steps=900'"),
        ("train sasrec --nproc 2 --gpus= --dry-run", "paceline.worker"),
    ],
)
def test_the_command_works_without_torch(tmp_path: Path, command: str, says: str) -> None:
    done = run(WITHOUT_TORCH, *command.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
