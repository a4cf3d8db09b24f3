"""Known messages: every signature on two real excerpts, none on logs that only look alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from paceline.config.describe import describe, describe_sections
from paceline.config.sections import RunConfig
from paceline.diagnose import signatures
from paceline.diagnose.finding import KINDS, SEVERITIES
from paceline.diagnose.signatures import load_signatures, match_messages
from paceline.launch.variables import KNOWN

DATA = Path(__file__).parents[1] / "data"
EXCERPTS: dict[str, list[str]] = yaml.safe_load((DATA / "messages.yaml").read_text(encoding="utf-8"))
LOGS = sorted((DATA / "logs").glob("*.log"))


def test_there_are_enough_and_all_are_complete() -> None:
    signatures = load_signatures()
    assert len(signatures) >= 25
    assert [each.name for each in signatures] == list(dict.fromkeys(each.name for each in signatures))
    assert {each.name for each in signatures} == set(EXCERPTS)
    assert len(LOGS) >= 20
    for each in signatures:
        assert each.kind in KINDS
        assert each.severity in SEVERITIES
        assert each.cause
        assert each.cure
        assert len(EXCERPTS[each.name]) >= 2


@pytest.mark.parametrize("name", EXCERPTS)
def test_real_excerpts_are_recognised_as_what_they_are(name: str) -> None:
    for excerpt in EXCERPTS[name]:
        found = match_messages(excerpt.splitlines())
        assert [finding.cause for finding in found] == [name], excerpt


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_logs_that_look_alike_match_nothing(path: Path) -> None:
    assert match_messages(path.read_text(encoding="utf-8").splitlines()) == []


def test_a_message_says_whose_it_is_and_how_often() -> None:
    line = (
        "[rank3]:[E ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8)"
    )
    (found,) = match_messages([line, line.replace("ank3", "ank5").replace("ank 3", "ank 5"), "step 12"])
    assert (found.rank, found.ranks, found.numbers["lines"]) == (None, (3, 5), 2)
    (found,) = match_messages(["OSError: [Errno 28] No space left on device"], rank=1)
    assert (found.kind, found.rank) == ("disk_full", 1)
    assert match_messages(["x" * 5_000_000]) == []


def test_every_key_and_variable_that_a_cure_names_exists() -> None:
    """In the source of every finding, too: whoever reads `do` types it."""
    keys, names = describe(RunConfig), describe_sections(RunConfig)
    texts = [each.cure for each in load_signatures()]
    texts += [path.read_text(encoding="utf-8") for path in Path(signatures.__file__).parent.glob("*.py")]
    sections = "|".join(name for name in names if "." not in name)
    for text in texts:
        for variable in re.findall(r"launch\.env\.(\w+)", text):
            assert variable in KNOWN
        for key in re.findall(rf"(?<![\w./])(?:{sections})\.[a-z_]+(?:\.[a-z_]+)*(?==|\b)", text):
            if key.startswith(("run.", "launch.env.")) or key.endswith((".csv", ".py")):
                continue  # a variable of ours, a file, an entry of a mapping
            assert key in keys or key in names, key
