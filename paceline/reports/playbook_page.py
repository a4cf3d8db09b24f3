"""The page about one playbook: where it stands, and for each phase its command, its verdict and its evidence.

page = build_playbook_page(read_playbook_facts(root), beside=root)
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paceline
from paceline.reports.amounts import counted, duration, figure, moment, text
from paceline.reports.lanes import Dot, Lane, Lanes, Span
from paceline.reports.links import link_to
from paceline.reports.page import Charts, Listing, Note, Page, Part, Section, Table, Tone
from paceline.reports.playbook_facts import PhaseFacts, PlaybookFacts
from paceline.reports.run_tables import flatten
from paceline.telemetry.numbers import is_finite, is_number

_TONES: dict[str, Tone] = {
    "finished": "good",
    "done": "good",
    "met": "good",
    "gate not met": "bad",
    "not met": "bad",
    "failed": "bad",
    "stopped": "warning",
    "interrupted": "warning",
    "not measured": "warning",
    "not judged": "warning",
}
_LONG = 25
"""rows of a phase's own table that are shown without being asked for"""
_COLOURS: dict[Tone, int] = {"good": 2, "bad": 5, "warning": 1, "plain": 4}


def build_playbook_page(facts: PlaybookFacts, beside: Path) -> Page:
    """`beside`: the directory that the page will lie in, for its links."""
    state, tone = _state(facts)
    sections = [*_verdict(facts), Section("Phases", list(_phases(facts)))]
    sections += [Section(f"{phase.name}: {phase.kind}", list(_phase(facts, phase, beside))) for phase in facts.phases]
    machine = facts.record.get("machine")
    rows = list(flatten(machine)) if isinstance(machine, dict) else []
    if rows:
        sections.append(Section("Machine", [Table(("what", "value"), rows)]))
    footer = f"Written by Paceline {paceline.__version__} on {moment(facts.now)} from {facts.root.absolute()}."
    return Page(f"{facts.name} (playbook)", state, tone, list(_facts(facts)), sections, footer)


def _state(facts: PlaybookFacts) -> tuple[str, Tone]:
    reason = text(facts.record.get("reason"))
    more = f": {reason}" if reason else ""
    verdict = text(facts.record.get("verdict"))
    if facts.state != "running":
        if verdict and facts.state in ("done", "failed"):
            return verdict if facts.state == "failed" else f"{facts.state}: {verdict}", _tone_of(verdict)
        return f"{facts.state}{more}", _TONES.get(facts.state, "plain")
    if facts.is_owned is False:
        return "interrupted: no process runs it any more; the same command goes on", "warning"
    return ("still running" if facts.is_owned else "running, as playbook.json says") + more, "plain"


def _verdict(facts: PlaybookFacts) -> list[Section]:
    """What was accepted, first of all: the tables of the phase that judges all others."""
    judges = [phase for phase in facts.phases if phase.kind == "accept" and phase.objects("tables")]
    verdict = text(facts.record.get("verdict"))
    if not judges or not verdict:
        return []
    return [Section("Acceptance", [Note(verdict, _tone_of(verdict)), *_tables(judges[-1], is_folded=False)])]


def _tone_of(verdict: str) -> Tone:
    return "good" if verdict == "passed" else "bad" if verdict.startswith("failed") else "warning"


def _facts(facts: PlaybookFacts) -> Iterator[tuple[str, str]]:
    record = facts.record
    if record.get("about"):
        yield "about", text(record["about"])
    ended = sum(phase.state in ("done", "skipped") for phase in facts.phases)
    yield "phases", f"{ended} of {len(facts.phases)} done or skipped"
    spent = sum(phase.seconds or 0.0 for phase in facts.phases)
    yield "took", duration(spent)
    if is_finite(record.get("created")):
        yield "began", moment(record["created"])
    yield "directory", str(facts.root.absolute())
    argv = record.get("argv")
    if isinstance(argv, list) and argv:
        yield "command", shlex.join(map(text, argv))
    made_by = text(record.get("paceline")) or paceline.__version__
    other = f" (this report: {paceline.__version__})" if made_by != paceline.__version__ else ""
    yield "Paceline", f"{made_by}{other}"


def _phases(facts: PlaybookFacts) -> Iterator[Part]:
    for gap in facts.gaps:
        yield Note(f"{gap}: what would stand there is missing below", "warning")
    if not facts.phases:
        yield Note("The playbook has no phase.")
        return
    rows = [
        (
            phase.name,
            phase.kind,
            phase.state,
            _gate_word(phase),
            duration(phase.seconds) if phase.seconds else "",
            _reason(phase) or text(phase.record.get("about")),
        )
        for phase in facts.phases
    ]
    yield Table(("phase", "kind", "state", "gate", "took", "what"), rows, frozenset({"took"}))
    timed = [(phase, phase.seconds) for phase in facts.phases if phase.seconds]
    if len(timed) > 1:
        yield Charts([Lanes("time of each phase", "seconds", [_lane(*each) for each in timed], noun="phase")])


def _lane(phase: PhaseFacts, seconds: float) -> Lane:
    dot = Dot(seconds, f"{phase.name}: {duration(seconds)}, {phase.state}", "tick")
    colour = _COLOURS[_TONES.get(phase.state, "plain")]
    return Lane(f"{phase.name}: {phase.kind}", [Span(0.0, seconds, "bar")], [dot], colour, duration(seconds))


def _gate_word(phase: PhaseFacts) -> str:
    """All of its conditions in a word."""
    verdicts = [text(condition.get("verdict")) for condition in phase.objects("gate")]
    if not verdicts:
        return "none"
    unjudged = sum(verdict == "not judged" for verdict in verdicts)
    if unjudged:
        return f"{sum(verdict == 'met' for verdict in verdicts)} of {len(verdicts)} met, {unjudged} not judged"
    missed = [verdict for verdict in verdicts if verdict != "met"]
    return f"{len(verdicts) - len(missed)} of {len(verdicts)} met" if missed else "met"


def _phase(facts: PlaybookFacts, phase: PhaseFacts, beside: Path) -> Iterator[Part]:
    record = phase.record
    if record.get("about"):
        yield Note(text(record["about"]))
    reason = _reason(phase)
    yield Note(f"{phase.state}: {reason}" if reason else phase.state, _TONES.get(phase.state, "plain"))
    rows = [("note", text(record["note"]))] if record.get("note") else []
    rows += [("command", text(record["command"]))] if record.get("command") else []
    rows += [("took", duration(phase.seconds))] if phase.seconds else []
    attempts = record.get("attempts")
    rows += [("attempts", counted(attempts, "attempt"))] if isinstance(attempts, int) and attempts > 1 else []
    exit_code = record.get("exit_code")
    rows += [("exit code", str(exit_code))] if isinstance(exit_code, int) else []
    if rows:
        yield Table(("what", "value"), rows)
    yield from _gate(phase)
    remedy = record.get("remedy")
    if isinstance(remedy, list) and remedy:
        yield Table(("type next",), [(text(line),) for line in remedy], caption="what to do")
    yield from _uses(phase)
    if phase.kind != "accept":  # whose table is the first thing on the page
        yield from _tables(phase)
    yield from _evidence(phase)
    yield from _links(facts, phase, beside)
    tail = record.get("tail")
    if isinstance(tail, list) and tail:
        yield Listing(f"the last {counted(len(tail), 'line')} of the command", "\n".join(map(text, tail)))


def _reason(phase: PhaseFacts) -> str:
    return text(phase.record.get("outdated")) or text(phase.record.get("reason"))


def _gate(phase: PhaseFacts) -> Iterator[Part]:
    conditions = phase.objects("gate")
    if not conditions:
        return
    has_why = any(condition.get("why") for condition in conditions)
    rows = []
    for condition in conditions:
        values = condition.get("values")
        known = values.items() if isinstance(values, dict) else ()
        shown = ", ".join(f"{name} = {_value(value, name)}" for name, value in known)
        why = (text(condition.get("why")),) if has_why else ()
        rows.append((text(condition.get("text")), text(condition.get("verdict")), shown, *why))
    yield Table(("condition", "verdict", "values", *(("why",) if has_why else ())), rows, caption="gate")


def _tables(phase: PhaseFacts, *, is_folded: bool | None = None) -> Iterator[Part]:
    for table in phase.objects("tables"):
        columns, rows = table.get("columns"), table.get("rows")
        if isinstance(columns, list) and isinstance(rows, list):
            cells = [[text(cell) for cell in row] for row in rows if isinstance(row, list) and len(row) == len(columns)]
            folded = len(cells) > _LONG if is_folded is None else is_folded
            yield Table([text(each) for each in columns], cells, caption=text(table.get("caption")), is_folded=folded)


def _value(value: Any, name: str = "") -> str:
    if value is None:
        return "not set" if name.startswith("limits.") else "not measured"
    return figure(value) if is_number(value) else text(value)


def _uses(phase: PhaseFacts) -> Iterator[Part]:
    used = phase.objects("uses")
    if not used:
        return
    is_changed = any("by_hand" in each for each in used)
    columns = ("key", "value", "from", "file", *(("given by hand instead",) if is_changed else ()))
    rows = []
    for each in used:
        row = [text(each.get(name)) for name in ("key", "value", "from", "file")]
        rows.append([*row, *([text(each.get("by_hand"))] if is_changed else [])])
    yield Table(columns, rows, caption="taken from earlier phases")


def _evidence(phase: PhaseFacts) -> Iterator[Part]:
    found = phase.record.get("evidence")
    if isinstance(found, dict):
        rows = [(name, value, "") for name, value in flatten(found)]
    else:
        rows = [(text(e.get("what")), _value(e.get("value")), text(e.get("from"))) for e in phase.objects("evidence")]
    if rows:
        yield Table(("what", "value", "from"), rows, caption="evidence")
    results = list(flatten(phase.part("results")))
    if results:
        yield Table(
            ("result", "value"), results, caption=f"{counted(len(results), 'result')} for gates", is_folded=True
        )
    settings = list(flatten(phase.part("settings")))
    if settings:
        yield Table(("key", "value"), settings, caption=f"{counted(len(settings), 'setting')}", is_folded=True)


def _links(facts: PlaybookFacts, phase: PhaseFacts, beside: Path) -> Iterator[Part]:
    rows = []
    for word, place in phase.part("links").items():
        if isinstance(place, str) and place:
            rows.append((text(word), link_to(facts.root / place, place, beside)))
    if rows:
        yield Table(("what", "where"), rows, caption="what it left")
