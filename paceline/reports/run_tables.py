"""What a run recorded beside its curves, as tables: attempts, choices, settings, events, checkpoints, ranks, environment."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.config.loading import DEFAULT
from paceline.config.source import show
from paceline.reports.amounts import UNKNOWN, count, counted, duration, figure, moment, size, text
from paceline.reports.page import Listing, Note, Part, Table
from paceline.reports.run_facts import RunFacts
from paceline.telemetry.numbers import is_finite
from paceline.telemetry.ownership import unannounced_end
from paceline.telemetry.reader import Row
from paceline.telemetry.run_file import Attempt
from paceline.telemetry.software import list_differences

MOST_EVENTS = 1000
_HEAD = {"v", "time", "attempt", "source", "kind"}
_SIGNS = ("warning", "failure", "restart", "note")


def attempts(facts: RunFacts) -> Iterator[Part]:
    rows = [_attempt(facts, attempt) for attempt in facts.run.run.attempts]
    if not rows:
        yield Note("No attempt is recorded.")
        return
    columns = ("attempt", "began", "took", "ranks", "from step", "to step", "went on from", "ended", "why", "exit code")
    yield Table(columns, rows, frozenset({"attempt", "ranks", "from step", "to step", "exit code"}))
    changed = [(count(each.attempt), str(change)) for each in facts.run.run.attempts for change in each.changed or ()]
    if changed:
        yield Table(("attempt", "changed"), changed, caption="settings that differ from the attempt before")
    software = list(_other_software(facts.run.run.attempts))
    if software:
        caption = "software that differs from the attempt before: equality bit for bit is not promised across it"
        yield Table(("attempt", "changed"), software, caption=caption)
    if any(start > 0 for start in facts.starts.values()):
        yield Note(
            "What an attempt did after the step at which the next one went on was trained again, and is left out above."
        )


def _other_software(attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    for before, after in itertools.pairwise(attempts):
        if before.software and after.software:  # older versions did not write it down
            yield from ((count(after.attempt), line) for line in list_differences(before.software, after.software))


def _attempt(facts: RunFacts, attempt: Attempt) -> tuple[str, ...]:
    number = attempt.attempt
    start = facts.starts.get(number)
    resumed = facts.run.events_of("resume", attempt=number)
    origin = str(resumed[-1].get("checkpoint", UNKNOWN)).rsplit("/", 1)[-1] if resumed else "anew" if start == 0 else ""
    is_last = attempt is facts.run.run.attempts[-1]
    ended, state = moment(attempt.ended), f"{attempt.state}: {attempt.reason}"
    took = duration(attempt.ended - attempt.started) if is_finite(attempt.ended) else UNKNOWN
    reached = count(attempt.step)
    if attempt.ended is None:
        known = [row["step"] for row in facts.run.metrics if row["attempt"] == number]
        known += [event["step"] for event in facts.run.events if _is_step_of(event, number)]
        reached = f"at least {max(known):,}" if known else UNKNOWN
        if is_last and facts.is_owned is not False:
            ended, state = "", "running"
            took = f"{duration(facts.now - attempt.started)} so far" if is_finite(attempt.started) else UNKNOWN
        else:
            ended, state = "not recorded", unannounced_end(facts.run.run)
    ranks, exit_code = count(attempt.world_size), count(attempt.exit_code) if attempt.exit_code is not None else ""
    return (count(number), moment(attempt.started), took, ranks, count(start), reached, origin, ended, state, exit_code)


def _is_step_of(event: Row, attempt: int) -> bool:
    return event.get("attempt") == attempt and isinstance(event.get("step"), int)


def choices(facts: RunFacts) -> Iterator[Part]:
    found: dict[tuple[str, ...], list[str]] = {}
    for event in facts.run.events_of("choice"):
        key = tuple(text(event.get(name)) for name in ("about", "requested", "effective", "reason"))
        found.setdefault(key, []).append(text(event.get("attempt")))
    if not found:
        yield Note("No choice is recorded.")
        return
    many = len(facts.run.run.attempts) > 1
    columns = ("about", "requested", "effective", "reason", *(("attempts",) if many else ()))
    rows = [(*key, *((", ".join(dict.fromkeys(numbers)),) if many else ())) for key, numbers in found.items()]
    yield Table(columns, rows)


def settings(facts: RunFacts) -> Iterator[Part]:
    if not facts.settings:
        yield Note("There is no configuration that could be read.")
        return
    unknown = "not recorded"
    rows = [(key, show(value), facts.origins.get(key, unknown)) for key, value in facts.settings.items()]
    changed = [row for row in rows if row[2] != DEFAULT]
    rest = [row for row in rows if row[2] == DEFAULT]
    columns = ("key", "value", "origin")
    if changed:
        yield Table(
            columns, changed, caption="not the default" if facts.origins else "where they came from is not recorded"
        )
    if rest:
        yield Table(columns, rest, caption=f"{counted(len(rest), 'value')} by default", is_folded=True)


def signs(facts: RunFacts) -> Iterator[Part]:
    """Warnings and the like at once, every event when asked for."""
    events = facts.run.events
    rows = []
    for event in events:
        if event.get("kind") in _SIGNS:
            rows.append((moment(event.get("time")), text(event.get("attempt")), str(event["kind"]), _details(event)))
    if rows:
        yield Table(("time", "attempt", "kind", "what"), rows)
    else:
        yield Note("No warning was recorded.")
    yield from (
        Listing(
            f"traceback of {event.get('source', UNKNOWN)}, attempt {event.get('attempt', UNKNOWN)}", event["traceback"]
        )
        for event in events
        if event.get("kind") == "failure" and isinstance(event.get("traceback"), str)
    )
    if not events:
        return
    kinds = ", ".join(
        f"{number:,} {kind}" for kind, number in Counter(str(e.get("kind")) for e in events).most_common()
    )
    caption = f"{counted(len(events), 'event')} ({kinds})"
    if len(events) > MOST_EVENTS:
        caption += f"; the last {MOST_EVENTS:,} are here, all are in {facts.run.layout.events.name}"
    yield Table(
        ("time", "attempt", "source", "kind", "what"),
        [
            (
                moment(event.get("time")),
                text(event.get("attempt")),
                text(event.get("source")),
                text(event.get("kind")),
                _details(event),
            )
            for event in events[-MOST_EVENTS:]
        ],
        caption=caption,
        is_folded=True,
    )


def _details(event: Row) -> str:
    problems = event.get("problems")
    if isinstance(problems, list) and problems:
        return "; ".join(describe_problem(problem) for problem in problems)
    shown = {name: value for name, value in event.items() if name not in _HEAD | {"traceback", "environment"}}
    return ", ".join(f"{name} {text(value)}" for name, value in shown.items() if value not in (None, "", []))


def describe_problem(problem: Any) -> str:
    """What went wrong, where, and what to do, on one line."""
    if not isinstance(problem, dict):
        return text(problem)
    pieces = [text(problem.get("what"))]
    pieces += [f"{word}: {text(problem[word])}" for word in ("where", "do") if problem.get(word)]
    return "; ".join(pieces)


def checkpoints(facts: RunFacts) -> Iterator[Part]:
    if not facts.checkpoints:
        told = facts.run.events_of("checkpoint")
        yield Note(
            "There is no checkpoint in the run directory."
            + (" These were told of; what became of them is not known." if told else "")
        )
        if told:
            yield Table(
                ("step", "name"), [(count(e.get("step")), text(e.get("name"))) for e in told], frozenset({"step"})
            )
        return
    rows = []
    for checkpoint in facts.checkpoints:
        manifest = checkpoint.manifest
        links = ", ".join(word for word, name in facts.links.items() if name == checkpoint.path.name)
        place = f"checkpoints/{checkpoint.path.name}"
        sizes = (size(manifest.num_bytes), count(len(manifest.files)), count(manifest.world_size))
        rows.append((count(checkpoint.step), place, *sizes, text(manifest.attempt), moment(manifest.time), links))
    columns = ("step", "where", "size", "files", "ranks", "attempt", "written", "links")
    yield Table(columns, rows, frozenset({"step", "size", "files", "ranks", "attempt"}))


def ranks(facts: RunFacts) -> Iterator[Part]:
    if not facts.beats:
        yield Note("No rank left a heartbeat.")
        return
    newest = facts.run.run.attempts[-1].attempt if facts.run.run.attempts else None
    has_wait = any("wait_ms" in beat for beat in facts.beats)
    has_gpu = any(isinstance(beat.get("gpu"), dict) for beat in facts.beats)
    columns = ["rank", "host", "process", "last beat", "step", "phase", "step p50 ms", "step p90 ms"]
    columns += ["wait ms"] * has_wait + ["memory GiB"] + ["GPU %", "GPU W"] * has_gpu
    columns += ["attempt"]
    rows = []
    for beat in facts.beats:
        times = beat["step_ms"] if isinstance(beat.get("step_ms"), dict) else {}
        gpu = beat["gpu"] if isinstance(beat.get("gpu"), dict) else {}
        attempt = text(beat.get("attempt"))
        row = [text(beat.get("rank")), text(beat.get("host")), text(beat.get("pid")), moment(beat.get("time"))]
        row += [count(beat.get("step")), text(beat.get("phase")), figure(times.get("p50")), figure(times.get("p90"))]
        row += [figure(beat.get("wait_ms"))] * has_wait + [figure(beat.get("memory_gib"))]
        row += [figure(gpu.get("util")), figure(gpu.get("power_w"))] * has_gpu
        rows.append([*row, attempt if beat.get("attempt") == newest else f"{attempt} (not in the last one)"])
    numbers = {"rank", "step", "step p50 ms", "step p90 ms", "wait ms", "memory GiB", "GPU %", "GPU W"}
    yield Table(columns, rows, frozenset(numbers), caption="from the last heartbeat of each rank")


def environment(facts: RunFacts) -> Iterator[Part]:
    if not facts.environment:
        yield Note("The environment is not recorded.")
        return
    rows = list(flatten(facts.environment))
    yield Table(("what", "value"), rows, caption=f"{counted(len(rows), 'value')} of env.json", is_folded=True)


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, value) of everything in a nested record."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{name}.")
        elif name != "v":
            yield f"{prefix}{name}", text(value)
