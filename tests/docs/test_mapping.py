"""docs/mapping.md, row by row: what stands under *ours* can be typed, and the effective configuration then is what the row says."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer._click.exceptions import ClickException

from paceline.cli.arguments import launch_flags
from paceline.config.contradictions import Facts
from paceline.config.describe import describe, value_at
from paceline.config.overrides import parse_overrides
from paceline.errors import PacelineError
from paceline.launch.environment import worker_environment
from paceline.playbook.playbook import load_playbook
from paceline.recipes.job import Job, load_job
from paceline.sweep.plan import load_plan
from tests.architecture.rooms import ROOT
from tests.architecture.test_configs import GENERATED
from tests.architecture.test_docs import check_line, parse_command, place  # noqa: F401

PAGE = (ROOT / "docs" / "mapping.md").read_text(encoding="utf-8")
NAMES = ROOT / "tests" / "docs" / "source_names.txt"
FILES = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("run-directory.md", "sweeps.md"))
NOT_NEEDED, ALREADY = "not needed: ", "already so"
SETTING = re.compile(r"[a-z_A-Z0-9]+(\.\w+)*=\S+")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+=\S+")


@dataclass(frozen=True)
class Row:
    """A row of a table: what a team typed, what is typed here after `base`, and what that does."""

    section: str
    base: str
    theirs: str
    ours: str
    effect: str

    def __str__(self) -> str:
        return f"{self.section[:2]} {self.theirs}"[:60]

    @property
    def ways(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.ours)


def read_rows() -> Iterator[Row]:
    section = base = ""
    is_table = False
    for line in PAGE.splitlines():
        if line.startswith("## "):
            section, base = line.removeprefix("## "), ""
        elif line.startswith("|"):
            cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if cells == ["theirs", "ours", "effect"]:
                is_table = True
            elif is_table and set(cells[0]) != {"-"}:
                assert len(cells) == 3, line
                yield Row(section, base, *cells)
        elif line:
            is_table = False
            named = re.search(r"[Aa]fter `(paceline [^`]+)`", line)
            base = named[1] if named else ""


ROWS = list(read_rows())
SECTIONS = list(dict.fromkeys(row.section for row in ROWS))


def load(words: list[str]) -> Job:
    """The job of a `paceline train` line."""
    given = parse_command(words[1:])
    flags = launch_flags(given["nproc"], given["gpus"])
    if given["out"] is not None:
        flags["run.out"] = (given["out"], "flag --out")
    return load_job(given["target"], given["overrides"] or [], flags, environ={})


def flat(job: Job) -> dict[str, Any]:
    return {name: value_at(job.config, name) for name in describe(type(job.config))} | {
        f"launch.env.{name}": value for name, value in job.config.launch.env.items()
    }


@functools.cache
def effective(line: str) -> Mapping[str, Any]:
    """Every value that a line leads to, by the name that one types after it."""
    words = shlex.split(line)
    if words[1] == "train":
        return flat(load(words))
    given = parse_command(words[1:])
    typed = list(given["overrides"] or [])
    if words[1] == "sweep":
        plan = load_plan(given["plan"], typed).config
        own = {name: getattr(plan, name) for name in type(plan).model_fields}
        axes = {f"axes.{name}": values for name, values in plan.axes.items()}
        settings = [f"{key}={value}" for key, value in plan.set.items() if not isinstance(value, list)]
        return flat(load_job(plan.recipe, settings, environ={})) | own | axes | plan.set
    assert words[1] == "play"
    playbook = load_playbook(given["playbook"], typed)
    found: dict[str, Any] = dict(playbook.set) | {key: entry.value for key, entry in playbook.typed.items()}
    for name, phase in playbook.phases.items():
        found |= {f"{name}.{key}": getattr(phase, key) for key in type(phase).model_fields}
        found |= {f"{name}.{key}": value for key, value in getattr(phase, "plan", {}).items()}
        if phase.takes_settings:
            config = flat(load_job(playbook.config_of(name), environ={}))
            found |= {f"{name}.{key}": value for key, value in (config | playbook.settings(name, {})).items()}
    return found


def environment(job: Job, inherited: Mapping[str, str]) -> dict[str, str]:
    """The workers' variables on a machine with as many GPUs as are asked for."""
    gpus = job.config.launch.gpus or [0, 1]
    visible = None if job.config.launch.gpus is None else [str(index) for index in gpus]
    planned = worker_environment(job.config.launch, len(gpus), len(gpus), inherited, visible=visible)
    return {note.name: note.value for note in planned.notes if note.value is not None}


def check_typed(line: str) -> None:
    """That it could be typed; of the data and models it asks for, what can be generated."""
    words = shlex.split(line)
    if (
        words[1] == "sweep" and len(words) > 3
    ):  # every case of the whole matrix is what the row of the plain command checks
        plan = load_plan(parse_command(words[1:])["plan"], [word for word in words[3:] if SETTING.fullmatch(word)])
        keys = describe(type(load_job(plan.config.recipe, environ={}).config))
        assert {*plan.config.axes, *plan.config.set} <= set(keys)
        return
    named = re.search(r"config=(tenrec|csa)", line)
    check_line(f"{line} {' '.join(GENERATED[named[1]])}" if named and words[1] == "play" else line)


def settings_of(text: str) -> dict[str, Any]:
    words = [word for word in shlex.split(text) if SETTING.fullmatch(word)]
    return {name: entry.value for name, entry in parse_overrides(words).entries.items() if name != "config"}


def same(one: Any, other: Any) -> bool:
    return str(list(one) if isinstance(one, tuple) else one) == str(other) or (one == other and one is not None)


def check_values(row: Row, before: Mapping[str, Any], after: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    """What is told is so afterwards, and was so before or was not, as the row says."""
    for name, value in told.items():
        assert same(after.get(name), value), (name, after.get(name), value)
    changed = [name for name, value in told.items() if not same(before.get(name), value)]
    assert bool(changed) != row.effect.startswith(ALREADY), (row, changed)


def check_way(row: Row, way: str) -> None:
    told_effect = settings_of(" ".join(re.findall(r"`([^`]+=[^`]+)`", row.effect)))
    told_variables = {name: str(value) for name, value in told_effect.items() if name.isupper()}
    if way.startswith(("RUN/", "SWEEP/")):
        assert f"`{way.partition('/')[2]}`" in FILES, f"{way} is documented nowhere"
    elif VARIABLE.fullmatch(way):
        assert told_variables == dict([way.split("=")])
        job = load(shlex.split(row.base))
        inherited = dict([way.split("=", 1)])
        assert told_variables.items() <= environment(job, inherited).items()
        assert not told_variables.items() <= environment(job, {}).items()
    elif way.startswith("paceline"):
        words = shlex.split(way)
        assert words[1] not in ("train", "sweep", "play") or len(words) > 2
        check_typed(way)
        told = settings_of(way)
        if words[1] in ("bench", "preflight"):
            given = parse_command(words[1:])
            load_job(given.get("target", given.get("config")) or "sasrec", given.get("overrides") or [], environ={})
        elif words[1] in ("train", "play") and told:
            bare = [word for word in words if not SETTING.fullmatch(word) or word.startswith("config=")]
            check_values(row, effective(shlex.join(bare)), effective(way), told)
        elif told_effect:
            check_values(row, {}, effective(way), told_effect)
    else:
        check_addition(row, way, told_effect, told_variables)


def check_addition(row: Row, way: str, told_effect: Mapping[str, Any], variables: Mapping[str, str]) -> None:
    """What is typed after the table's base."""
    assert row.base, f"no line says after what to type {way}"
    line = f"{row.base} {way}"
    check_typed(line)
    told = settings_of(way) | {name: value for name, value in told_effect.items() if not name.isupper()}
    if not told:
        assert way.startswith("--"), f"not a way to say anything: {way}"
        return
    before, after = effective(row.base), effective(line)
    check_values(row, before, after, told)
    if not row.base.startswith("paceline train"):
        return
    job, plain = load(shlex.split(line)), load(shlex.split(row.base))
    world_size = job.config.launch.nproc if isinstance(job.config.launch.nproc, int) else 2
    job.check(Facts(world_size, num_gpus=world_size))
    assert [(key, why) for key, why in job.idle(job.given) if key in told] == []
    assert variables.items() <= environment(job, {}).items()
    assert not variables or (variables.items() <= environment(plain, {}).items()) == row.effect.startswith(ALREADY)


def can_be_typed(row: Row) -> bool:
    try:
        for way in row.ways:
            check_typed(way if way.startswith("paceline") else f"{row.base} {way}")
    except (PacelineError, ClickException):
        return False
    return True


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_does_what_it_says(place: Path, row: Row) -> None:  # noqa: F811
    if row.ours == "—":
        assert row.effect.startswith(NOT_NEEDED), row
        assert len(row.effect) > len(NOT_NEEDED) + 10
        return
    assert not row.effect.startswith(NOT_NEEDED)
    assert row.ways
    for way in row.ways:
        check_way(row, way)


@pytest.mark.parametrize(
    ("ours", "effect"),
    [
        ("`parallel.bucket_mb=25`", "fewer, larger"),
        ("`parallel.bucket_mb=100`", "already so"),
        ("`parallel.bucket=100`", ""),
        ("`--nproc 3`", "`launch.nproc=4`"),
        ("`--nproc 2`", "`launch.nproc=2`"),
        ("`--nprocs 4`", ""),
        ("`launch.env.NCCL_ALGO=Tree`", "`NCCL_ALGO=Ring`"),
        ("`launch.env.NCCL_DEBUG=INFO`", "`NCCL_DEBUG=WARN`"),
        ("`NSA_OPT_FUSED=1`", "`NSA_OPT_FUSED=1`"),
        ("`parallel.find_unused=true`", "with a static graph"),
        ("`attention.impl=flash`", "has no effect on sparse attention"),
        ("`RUN/training.csv`", ""),
        ("`paceline watch RUN --halt`", ""),
        ("`paceline train nsa-production parallel.bucket_mb=25`", ""),
        ("whatever", ""),
    ],
)
def test_a_wrong_row_would_be_found(place: Path, ours: str, effect: str) -> None:  # noqa: F811
    row = Row("", "paceline train nsa-production", "", ours, effect)
    with pytest.raises((Exception, SystemExit)) as caught:
        check_way(row, ours.strip("`"))
    assert not isinstance(caught.value, ImportError | AttributeError | TypeError | KeyError)


def read_names() -> dict[str, list[str]]:
    """Section of the page -> what its document names."""
    names: dict[str, list[str]] = {}
    for line in NAMES.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            names[line.removeprefix("# ")] = section = []
        elif line:
            section.append(line)
    return names


def test_every_document_has_its_names_and_its_tables() -> None:
    assert list(read_names()) == SECTIONS
    assert all(len(names) == len(set(names)) for names in read_names().values())


@pytest.mark.parametrize("section", SECTIONS)
def test_every_name_of_a_document_is_mapped(section: str) -> None:
    theirs = "\n".join(row.theirs for row in ROWS if row.section == section)
    missing = [name for name in read_names()[section] if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", theirs)]
    assert missing == []
