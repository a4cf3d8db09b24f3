"""What can be known before anything starts: everything that stands against a playbook, and what it would run.

check_play(stage)            # ConfigError with all of it
describe_play(stage)         # the lines of --dry-run
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence

from paceline.config.expression import parse
from paceline.config.nearest import nearest
from paceline.errors import ConfigError, PacelineError, Problem
from paceline.playbook.gate import check_gates
from paceline.playbook.phase import Work
from paceline.playbook.stage import Links, Stage
from paceline.playbook.state import load_record
from paceline.playbook.winner import check_uses, find_used

AskMetrics = Callable[[str, Sequence[str]], Sequence[str]]
"""(recipe or file, overrides) -> the names of its metrics; takes seconds, because torch is asked"""


def check_play(stage: Stage, ask_metrics: AskMetrics | None = None) -> None:
    """Raises all that stands against it: gates, references, configurations, plans, winners that will not be there."""
    playbook = stage.playbook
    problems = [*check_gates(playbook), *check_uses(playbook)]
    if problems:
        raise ConfigError(problems=problems)
    links = stage.links(load_record(stage.root))
    for name in stage.selection.names:
        problems += [*_check_source(stage, name, links), *_check_axes(stage, name)]
        try:
            used = find_used(playbook, name, links, stage.expected(name))
            scene = stage.scene(name, used, links).without_unknown()
            # Of what was typed and is varied the plan would say the same in other words.
            playbook.phases[name].check(scene.without(_fixed(stage, name)))
        except PacelineError as error:
            problems += [_in_phase(name, problem) for problem in error.problems]
    if not problems and ask_metrics is not None:
        problems = [problem for name in stage.selection.names for problem in _check_metrics(stage, name, ask_metrics)]
    if problems:
        raise ConfigError(problems=list(dict.fromkeys(problems)))


def describe_play(stage: Stage) -> list[str]:
    """What would be run, phase by phase."""
    playbook, selection = stage.playbook, stage.selection
    links = stage.links(load_record(stage.root))
    lines = [f"playbook {playbook.name} in {stage.root}"]
    for name, phase in playbook.phases.items():
        lines += ["", f"{name} ({phase.kind})" + (f"   {phase.about}" if phase.about else "")]
        if name in selection.skipped:
            lines.append(f"  skipped   {selection.skipped[name]}")
            continue
        used = find_used(playbook, name, links, stage.expected(name))
        work = phase.plan_work(stage.scene(name, used, links))
        if used.source:
            lines.append(f"  uses      {used.source}: {', '.join(used.values or used.cases[0])}")
        lines += [f"  uses      the run of {phase}: {key}" for key, (phase, _) in used.runs.items()]
        lines += [f"  note      {note}" for note in playbook.not_for(name)]
        lines.append(f"  command   {show_command(work) or 'none: the gate looks at earlier phases'}")
        for text in work.files.values() if work.arguments else ():
            lines += [f"  plan      {line}" for line in text.splitlines()]
        lines += [f"  gate      {text}" for text in phase.gate]
        lines += [f"  gate      {text}   ({why})" for text, why in phase.criteria({})]
    return lines


def show_command(work: Work) -> str:
    """As one would type it; empty where nothing is run."""
    return shlex.join(["paceline", *work.arguments]) if work.arguments else ""


def _check_source(stage: Stage, name: str, links: Links) -> Iterator[Problem]:
    for source in stage.playbook.phases[name].trained().values():
        if source not in stage.expected(name) and "run" not in links.get(source, {}):
            what = f"{name} takes the run of {source}, which has not been done here"
            yield Problem(what, str(stage.root), f"run {source}, too, or give the --out where it was done")


def _fixed(stage: Stage, name: str) -> dict[str, str]:
    """What a phase varies, and was typed for it or for all -> where."""
    playbook = stage.playbook
    typed = {**playbook.typed, **playbook.typed_for.get(name, {})}
    return {key: typed[key].origin for key in playbook.phases[name].wins_by() if key in typed}


def _check_axes(stage: Stage, name: str) -> Iterator[Problem]:
    for key, origin in _fixed(stage, name).items():
        do = f"give it to another phase (PHASE.{key}=…), or other values to the axis ({name}.axes.{key}=[…])"
        yield Problem(f"{key} cannot be fixed: {name} varies it", origin, do)


def _check_metrics(stage: Stage, name: str, ask: AskMetrics) -> Iterator[Problem]:
    """Names under a prefix are the recipe's: whether it has such a metric only torch can tell, so it is asked only where one is named."""
    playbook, phase = stage.playbook, stage.playbook.phases[name]
    prefixes = phase.reports.prefixes
    words = {
        word: word.rpartition(".")[2]
        for text in phase.gate
        for word in parse(text).names
        if word not in phase.reports.names and any(word.startswith(prefix) for prefix in prefixes)
    }
    asked = {word: metric for word, metric in words.items() if metric != "objective"}
    if not asked:
        return
    target = name if phase.takes_settings else str(getattr(phase, "of", None))
    links = stage.links(load_record(stage.root))
    used = find_used(playbook, target, links, stage.expected(target) if target in stage.selection.names else ())
    scene = stage.scene(target, used, links).without_unknown()
    metrics = [*ask(scene.config, scene.overrides()), "objective"]
    for word, metric in asked.items():
        if metric not in metrics:
            close = nearest(metric, metrics)
            do = f"write {word.rpartition('.')[0]}.{close}" if close else f"use one of {', '.join(metrics)}"
            yield Problem(
                f"the gate of {name} asks for {word}, and {scene.config} has no such metric",
                playbook.where(name, "gate"),
                do,
            )


def _in_phase(name: str, problem: Problem) -> Problem:
    return Problem(problem.what, f"phase {name}: {problem.where}" if problem.where else f"phase {name}", problem.do)
