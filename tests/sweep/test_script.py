"""A foreign script's code is what its words name, and what of its own that imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.sweep.script import script_files

FILES = {
    "train.py": "import json, model\nfrom layers import norm, Missing\nfrom layers.deep.inner import x\n",
    "model.py": "def build():\n    import late\n",
    "late.py": "import train\n",
    "other.py": "",
    "broken.py": "def (",
    "a.yaml": "import other",
    "layers/__init__.py": "",
    "layers/norm.py": "from . import eps\nfrom .deep import inner",
    "layers/eps.py": "",
    "layers/unused.py": "",
    "layers/deep/inner.py": "from ..eps import y",
    "pkg/__main__.py": "from .tool import x",
    "pkg/tool.py": "import other",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            ["python", "train.py", "--config=a.yaml", "--lr=0.1"],
            {"train.py", "a.yaml", "model.py", "late.py", "layers/__init__.py"}
            | {"layers/norm.py", "layers/eps.py", "layers/deep/inner.py"},
        ),
        (["torchrun", "-m", "layers.norm"], {"layers/__init__.py", "layers/norm.py", "layers/eps.py", "layers/deep/inner.py"}),
        (["python", "-m", "pkg"], {"pkg/__main__.py", "pkg/tool.py", "other.py"}),
        (["python", "broken.py"], {"broken.py"}),
        (["python", "-m", "json.tool"], set()),
        (["tool", "-m", "/train"], set()),
    ],
)  # fmt: skip
def test_which_files_count(place: Path, argv: list[str], expected: set[str]) -> None:
    assert {path.relative_to(place).as_posix() for path in script_files(argv)} == expected
