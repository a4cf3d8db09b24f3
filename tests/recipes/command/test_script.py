"""Which word of a command line is its script, and what is said when it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli.main import run_command
from paceline.recipes.command.script import find_script


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("python train.py a.py", "train.py"),
        ("/usr/bin/python3.11 -u -X dev ./code/train.py", "./code/train.py"),
        ("bash -e run.sh", "run.sh"),
        ("torchrun --standalone --nproc-per-node 2 --nnodes=1 train.py --lr=1", "train.py"),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "train.py"),
        # Nobody can tell, or it is none.
        ("python -m pkg.train --config=a.py", None),
        ("python -c pass x.py", None),
        ("python train --out x.py", None),
        ("python -W error", None),
        ("torchrun -m pkg.train x.py", None),
        ("torchrun --new-option x.py --config y.py", None),
        ("nice python train.py", None),
        ("bash -c run.sh", None),
        ("bash -lc run.sh", None),
        ("python -um pkg.train conf.py", None),
        ("python -mpkg.train conf.py", None),
        ("./train.py", None),
        ("python", None),
    ],
)
def test_the_script_is_the_first_word_that_is_no_option(line: str, script: str | None) -> None:
    assert find_script(line.split()) == script


PLAN = r"""
recipe: command
command: {argv: [python, "{params.file}"], metrics: {step: 'iter (\d+)'}}
axes: {params.file: [here.py, gone.py]}
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("flag", [["--dry-run"], []])
def test_a_script_that_is_not_there_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.py").touch()
    Path("plan.yaml").write_text(PLAN)
    said = f"there is no script gone.py (looked for {tmp_path / 'gone.py'})"
    assert run_command(["sweep", "plan.yaml", "--out", "s", *flag]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "here.py" not in error
    assert run_command(["train", "command", "command.argv=[python, gone.py]", "--out", "r", *flag]) == 2
    assert said in capsys.readouterr().err
    assert not Path("s").exists()
    assert not Path("r").exists()


def test_a_text_for_a_shell_is_no_script() -> None:
    assert find_script(["bash", "-l", "source env.sh && python train.py"]) is None
