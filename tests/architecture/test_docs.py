"""What the documents say can be typed, and what they name exists: commands, keys, targets, paths, records."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.cli.app import COMMANDS, LazyGroup, build_app, load_command
from paceline.cli.arguments import launch_flags
from paceline.playbook.playbook import load_playbook
from paceline.playbook.preview import check_play
from paceline.playbook.selection import select
from paceline.playbook.stage import Stage
from paceline.recipes.job import load_job
from paceline.sweep.matrix import build_matrix
from paceline.sweep.plan import load_plan
from paceline.triage.ladder import load_ladder
from tests.architecture.rooms import PACKAGE, ROOT

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EXAMPLE = ROOT / "tests" / "data" / "run-v1"


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: Path
    heading: str
    language: str
    lines: tuple[str, ...]


def blocks(document: Path) -> Iterator[Block]:
    heading, language, inside = "", None, list[str]()
    for line in document.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            if language is None:
                language, inside = line.removeprefix("```").strip(), []
            else:
                yield Block(document, heading, language, tuple(inside))
                language = None
        elif language is not None:
            inside.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    assert language is None, f"{document.name}: a block is not closed"


BLOCKS = [block for document in DOCUMENTS for block in blocks(document)]
LINES = [(block.document.name, line) for block in BLOCKS if block.language == "sh" for line in block.lines]
PROSE = [
    (d.name, code)
    for d in DOCUMENTS
    for code in re.findall(r"`([^`\n]+)`", re.sub(r"(?s)```.*?```", "", d.read_text()))
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the YAML files that the documents show; each begins with its name."""
    for block in BLOCKS:
        if block.language == "yaml":
            (tmp_path / block.lines[0].removeprefix("# ")).write_text("\n".join(block.lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parse_command(arguments: list[str]) -> dict[str, Any]:
    """The parsed parameters of a `paceline` command line; nothing is executed."""
    app = build_app()
    context = app.make_context("paceline", list(arguments), resilient_parsing=False)
    name, command, rest = app.resolve_command(context, list(arguments))
    assert command is not None
    inner = command.make_context(name, rest, parent=context)
    if isinstance(command, LazyGroup):
        verb, command, rest = command.resolve_command(inner, rest)
        assert command is not None
        inner = command.make_context(verb, rest, parent=inner)
    return {"command": name, **inner.params}


def check_line(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "paceline":
        given = parse_command(words[1:])
        # A best.yaml is what a sweep will write.
        if given["command"] in ("train", "explain") and not given["target"].endswith("/best.yaml"):
            load_job(given["target"], given["overrides"] or [], launch_flags(given["nproc"], given["gpus"]), environ={})
        if given["command"] == "sweep":
            # Which GPUs there are here is not the document's business.
            typed = ["launch.gpus=[]" if word.startswith("launch.gpus=") else word for word in given["overrides"] or []]
            build_matrix(load_plan(given["plan"], typed))
        if given["command"] == "play":
            playbook = load_playbook(given["playbook"], [*(given["overrides"] or []), "launch.gpus=[]"])
            selection = select(playbook, given["phases"], given["start"], given["skip"])
            if given["start"] is None:  # else it goes on from what lies in its directory
                check_play(Stage(playbook, selection, Path("nowhere")))
    elif words[0] == "make":
        assert {word for word in words[1:] if "=" not in word} <= TARGETS
    elif words[0] == "torchrun":
        from torch.distributed.run import get_args_parser

        from paceline.worker.arguments import parse_arguments

        parsed = get_args_parser().parse_args(words[1:])
        assert (parsed.module, parsed.training_script) == (True, "paceline.worker")
        given = parse_arguments(parsed.training_script_args)
        load_job(given.target, given.overrides, environ={})
    elif words[0] == "deepspeed":  # whose own options are not looked at: it need not be installed
        from paceline.worker.arguments import parse_arguments

        rest = words[words.index("--module") + 1 :]
        assert rest[0] == "paceline.worker"
        given = parse_arguments(["--local_rank=0", *rest[1:]])
        load_job(given.target, given.overrides, environ={})
    else:
        raise AssertionError(f"not a command that is checked: {line}")


@pytest.mark.parametrize(("document", "line"), LINES, ids=lambda value: value)
def test_a_command_in_a_block_parses_and_its_keys_exist(place: Path, document: str, line: str) -> None:
    check_line(line)


@pytest.mark.parametrize(
    "line",
    [
        "paceline train sasrec --nprocs 2",
        "paceline train sasrec train.epoch=2",
        "paceline explain",
        "paceline explain other.yaml",
        "paceline trian sasrec",
        "paceline prepare movilens",
        "paceline sweep buckets.yaml axes.parallel.bucket=[1]",
        "paceline sweep buckets.yaml --dry",
        "paceline play p0-p3 P1.step=50",
        "paceline play p0-p3 --phases P9",
        "paceline play p0-p4",
        "paceline prepare movielens --form ml-1m.zip",
        "make coffee",
        "torchrun --processes 2 -m paceline.worker sasrec",
        "torchrun --nproc-per-node 2 -m paceline.worker sasrec train.epoch=2",
        "deepspeed --module paceline.worker sasrec train.epoch=2",
        "paceline.worker sasrec",
    ],
)
def test_a_wrong_one_would_be_found(place: Path, line: str) -> None:
    with pytest.raises((Exception, SystemExit)) as caught:
        check_line(line)
    assert not isinstance(caught.value, ImportError | AttributeError | TypeError)


def test_commands_in_the_text_exist_with_their_flags() -> None:
    checked = 0
    for document, code in PROSE:
        words = code.replace("\\|", "|").replace("[", " ").replace("]", " ").split()
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= TARGETS, (document, code)
            checked += 1
        if words[0] == "paceline" and len(words) > 1 and not words[1].startswith("-"):
            assert words[1] in COMMANDS, (document, code)
            command = load_command(words[1])
            if isinstance(command, LazyGroup) and len(words) > 2:
                assert words[2] in command.table, (document, code)
                command = load_command(words[2], command.table)
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            assert {word for word in words if word.startswith("--")} <= known, (document, code)
            checked += 1
    assert checked > 10


def test_the_table_of_commands_is_whole() -> None:
    rows = re.findall(r"^\| `paceline (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert list(dict.fromkeys(rows)) == list(COMMANDS)


def test_links_and_paths_exist() -> None:
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
        missing = [link for link in links if not (document.parent / link).exists()]
        named = re.findall(r"`((?:tests|docs|paceline)/[\w./-]+)`", text)
        missing += [path for path in named if not (ROOT / path).exists()]
        assert missing == [], document.name


def mapped() -> list[Path]:
    """The paths of the README's file map; indentation is nesting."""
    (block,) = [block for block in BLOCKS if block.heading == "File map"]
    paths: list[Path] = []
    parents: list[Path] = []
    for line in block.lines:
        name, phrase = line.split(maxsplit=1)
        depth = (len(line) - len(line.lstrip())) // 2
        parents = [*parents[:depth], (parents[depth - 1] if depth else ROOT) / name]
        assert phrase
        paths.append(parents[-1])
    return paths


def test_the_file_map_names_what_exists() -> None:
    assert [str(path) for path in mapped() if not path.exists()] == []
    assert len(set(mapped())) == len(mapped())


def test_the_file_map_names_every_room_and_every_file_of_those_it_opens() -> None:
    named = set(mapped())
    opened = {path.parent for path in named if PACKAGE in path.parents}
    assert PACKAGE in opened
    for folder in opened:
        inside = {path for path in folder.iterdir() if path.name not in ("__pycache__", "__init__.py")}
        assert sorted(str(path) for path in inside - named) == []


def section(heading: str) -> str:
    text = (ROOT / "docs" / "run-directory.md").read_text(encoding="utf-8")
    return next(part for part in re.split(r"^## ", text, flags=re.MULTILINE) if part.startswith(heading + "\n"))


RECORDS = [block for block in BLOCKS if block.document.name == "run-directory.md"]


@pytest.mark.parametrize("block", RECORDS, ids=lambda block: block.heading)
def test_an_example_record_is_a_line_of_a_real_run(block: Block) -> None:
    lines = {line.strip() for line in (EXAMPLE / block.heading).read_text().splitlines()}
    assert [line for line in block.lines if line.strip() not in lines] == []


def fields(path: Path) -> set[str]:
    if path.suffix == ".csv":
        return set(next(csv.reader([path.read_text().splitlines()[0]])))
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        return set(content) | {name for attempt in content.get("attempts", []) for name in attempt}
    return {name for line in path.read_text().splitlines() for name in json.loads(line)}


@pytest.mark.parametrize(
    "heading",
    [
        "run.json",
        "env.json",
        "metrics.csv",
        "validation.csv",
        "events.jsonl",
        "heartbeat/rank_00001.jsonl",
        "ledger/rank_00001.jsonl",
    ],
)
def test_every_field_is_documented(heading: str) -> None:
    documented = set(re.findall(r"`(\w+)`", section(heading)))
    assert fields(EXAMPLE / heading) - documented == set()


def test_every_file_of_a_run_is_documented() -> None:
    text = (ROOT / "docs" / "run-directory.md").read_text()
    names = {
        path.relative_to(EXAMPLE).as_posix().replace("00001", "00000") for path in EXAMPLE.rglob("*") if path.is_file()
    }
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_the_shown_yaml_is_yaml(place: Path) -> None:
    shown = {path.name: yaml.safe_load(path.read_text()) for path in place.glob("*.yaml")}
    assert shown.pop("book.yaml")["config"] == "sasrec"
    playbook = load_playbook(str(place / "book.yaml"), ["launch.gpus=[]"])
    check_play(Stage(playbook, select(playbook), place / "out"))
    assert shown.pop("sized.yaml")["config"] == "sasrec"
    for ranks, skipped in (("1", ["buckets"]), ("2", [])):
        playbook = load_playbook(str(place / "sized.yaml"), ["launch.gpus=[]", f"launch.nproc={ranks}"])
        assert list(select(playbook).skipped) == skipped
        check_play(Stage(playbook, select(playbook), place / "out"))
    assert shown.pop("ladder.yaml")["rungs"]
    assert load_ladder(str(place / "ladder.yaml")).config.symptom == "deadlock"
    (place / "train.py").touch()  # the script of mine-plan.yaml: somebody else's
    found = {name: content["recipe"] for name, content in shown.items()}
    plans = {"buckets.yaml": "sasrec", "ranks.yaml": "sasrec", "mine-plan.yaml": "command"}
    plans |= {"bucket-plan.yaml": "nsa-production"}
    walked = {"fit.yaml": "command", "spirals.yaml": "spirals"}
    assert found == {"mine.yaml": "sasrec"} | plans | walked
    assert load_plan(place / "ranks.yaml", ["launch.gpus=[]"]).config.rank_table
    assert len(build_matrix(load_plan(place / "mine-plan.yaml")).cases) == 3
