"""Runs a playbook: one phase after another, each as a command, each judged by its gate; stops at the first that does not pass.

    record = Play(stage).run()       # goes on where it was; GateError where a gate is not met

What is done stays done: a phase is run again only where it has not ended well, or where standing.py says that what it left is not what is
asked for now (and then in a directory of its own). Its gate is judged anew each time, so that another gate needs no second training.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from paceline.config.expression import parse
from paceline.errors import GateError, Interrupted, PacelineError, Problem, UsageError
from paceline.files import storage_errors, write_text
from paceline.launch.death import describe_signal
from paceline.launch.signals import WORDS, OperatorSignals
from paceline.playbook.child import PREFIX, Child, Ended
from paceline.playbook.gate import Judged, judge
from paceline.playbook.ground import find_ground
from paceline.playbook.opening import open_record
from paceline.playbook.pages import write_pages
from paceline.playbook.phase import Phase, Work
from paceline.playbook.remedy import choose_remedies, fill_remedy
from paceline.playbook.results import Outcome
from paceline.playbook.stage import Stage
from paceline.playbook.standing import Standing
from paceline.playbook.state import (
    DONE,
    FAILED,
    NOT_MET,
    RUNNING,
    SKIPPED,
    STOPPED,
    WAITING,
    PhaseRecord,
    PlayRecord,
    Store,
)
from paceline.playbook.winner import find_used
from paceline.telemetry.layout import RunLayout


class Play:
    """One playbook in one directory."""

    def __init__(self, stage: Stage, prefix: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
        self._stage = stage
        self._playbook = stage.playbook
        self._selection = stage.selection
        self._root = stage.root
        self._prefix = prefix or PREFIX
        self._say = say
        self._store = Store(self._root)
        self._standing = Standing(stage, find_ground(), say)

    def run(self) -> PlayRecord:
        """Everything that is selected, in order; the record at its end."""
        self._store.take()
        try:
            with OperatorSignals() as signals:
                record = open_record(self._stage, self._store, self._standing)
                self._save(record)
                self._run_phases(record, signals)
                return record
        finally:
            self._store.release()

    def _run_phases(self, record: PlayRecord, signals: OperatorSignals) -> None:
        missed: list[Problem] = []
        for name in self._playbook.phases:
            entry = record.phase(name)
            reason = self._selection.skipped.get(name) or self._find_missing(record, name)
            if reason:
                self._skip(record, entry, reason)
                continue
            try:
                self._run_phase(record, entry, signals)
            except PacelineError as error:
                # A phase that ended with its gate open, or was stopped, has said so itself.
                if entry.state in (WAITING, RUNNING):
                    entry.state, entry.reason = FAILED, error.problems[0].what
                was_stopped = isinstance(error, Interrupted)
                entry.remedy = [] if was_stopped else self._fill_remedy(record, name)
                if not self._playbook.phases[name].required and not was_stopped:
                    self._save(record)
                    self._say(f"{name}: {entry.state}: {entry.reason}; the playbook goes on without it")
                    missed += self._with_remedy(error, entry)
                    continue
                record.state = STOPPED if was_stopped else FAILED
                record.reason = f"{name}: {entry.state}"
                self._save(record)
                raise
        record.state, record.reason = (FAILED, f"{len(missed)} not met") if missed else (DONE, "")
        self._save(record)
        if missed:
            raise GateError(problems=list(dict.fromkeys(missed)))

    def _find_missing(self, record: PlayRecord, name: str) -> str:
        """Why a phase that may be left out has nothing to look at: an earlier one left no run."""
        phase, links = self._playbook.phases[name], self._stage.links(record)
        if phase.required:
            return ""
        for source in phase.trained().values():
            if "run" not in links.get(source, {}):
                return f"it looks at {source}, which is {record.phase(source).state}"
            if record.phase(source).outdated:
                return f"it looks at {source}, of which there is nothing that was asked for now"
        return ""

    def _skip(self, record: PlayRecord, entry: PhaseRecord, reason: str) -> None:
        self._say(f"{entry.name}: skipped ({reason})")
        if entry.has_run:
            entry.outdated = self._standing.find_outdated(record, entry, reason)
            if entry.outdated:
                self._say(f"{entry.name}: {entry.outdated}")
        else:
            entry.state, entry.reason = SKIPPED, reason
        self._save(record)

    def _fill_remedy(self, record: PlayRecord, name: str) -> list[str]:
        """What to type next, with the run and the configuration of this phase."""
        phase, entry, links = self._playbook.phases[name], record.phase(name), self._stage.links(record)
        place = self._root / entry.place
        sources = [links[source]["run"] for source in phase.trained().values() if "run" in links.get(source, {})]
        run = sources[0] if sources and not phase.trains else place
        lines = choose_remedies(phase.remedy, phase.unmeasured, entry.gate)
        return fill_remedy(lines, run, self._playbook.config_of(name), self._playbook.typed_words(name), place)

    def _with_remedy(self, error: PacelineError, entry: PhaseRecord) -> list[Problem]:
        do = " ; ".join(entry.remedy)
        return [Problem(each.what, each.where, f"type {do}" if do else each.do) for each in error.problems]

    def _run_phase(self, record: PlayRecord, entry: PhaseRecord, signals: OperatorSignals) -> None:
        name, phase = entry.name, self._playbook.phases[entry.name]
        entry.outdated = ""
        links = self._stage.links(record)
        used = find_used(self._playbook, name, links)
        for note in self._playbook.not_for(name):
            self._say(f"{name}: {note}")
        work = self._standing.plan(record, entry, used, links)
        entry.uses = used.to_record(self._playbook.by_hand(name))
        outcome = self._look_back(entry, phase, work) if entry.has_run else None
        if outcome is None:
            self._do(record, entry, phase, work, signals)
            outcome = _read(phase, work, entry)
        entry.take(outcome, self._root)
        if outcome.skipped:
            self._say(f"{name}: skipped ({outcome.skipped})")
            entry.state, entry.reason, entry.gate = SKIPPED, outcome.skipped, []
            self._save(record)
            return
        record.verdict = outcome.verdict or record.verdict
        judged = self._judge(record, entry, phase)
        entry.gate = [each.to_record() for each in judged]
        failed = [each for each in judged if each.is_missed]
        entry.state, entry.reason, entry.remedy = (NOT_MET, str(failed[0]), []) if failed else (DONE, "", [])
        self._save(record)
        for each in judged:
            self._say(f"{name}: {each}")
        if failed:
            raise self._gate_error(entry, failed)

    def _look_back(self, entry: PhaseRecord, phase: Phase, work: Work) -> Outcome | None:
        """What a phase that has run left; None where that is gone, and it has to be run again."""
        try:
            outcome = _read(phase, work, entry)
        except PacelineError as error:
            self._say(f"{entry.name}: run again, because what it left cannot be read ({error.problems[0].what})")
            entry.has_run = False
            self._standing.settle(entry)
            return None
        self._say(f"{entry.name}: done already ({entry.place or 'no command'})")
        return outcome

    def _do(self, record: PlayRecord, entry: PhaseRecord, phase: Phase, work: Work, signals: OperatorSignals) -> None:
        """Runs the command of a phase; raises where it did not end well."""
        if signals.asked is not None:
            raise self._stopped(record, entry, f"by {WORDS[signals.asked]}, before it began")
        entry.state, entry.reason, entry.tail = RUNNING, "", []
        entry.attempts, entry.started = entry.attempts + 1, time.time()
        with storage_errors(self._root):
            (self._root / entry.name).mkdir(exist_ok=True)
            for path, text in work.files.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, text)
            for path in work.removed:
                path.unlink(missing_ok=True)
        self._save(record)
        if not work.arguments:
            entry.has_run, entry.exit_code = True, 0
            return
        self._say(f"{entry.name}: {entry.command}")
        began = time.monotonic()
        with storage_errors(self._root):
            ended = Child(self._prefix, signals).run(work.arguments, work.answer)
        entry.seconds += time.monotonic() - began
        entry.exit_code = ended.exit_code
        if signals.asked is not None:
            raise self._stopped(record, entry, f"by {WORDS[signals.asked]}")
        if ended.exit_code != 0:
            with contextlib.suppress(PacelineError):  # there need not be any
                entry.take(_read(phase, work, entry), self._root)
            raise self._failure(entry, ended)
        why = phase.find_unfinished(work)
        if why is not None:
            raise self._stopped(record, entry, why)
        entry.has_run = True
        self._save(record)

    def _stopped(self, record: PlayRecord, entry: PhaseRecord, why: str) -> Interrupted:
        entry.state, entry.reason = STOPPED, why
        self._save(record)
        do = "the same command goes on where it was"
        return Interrupted(f"the playbook was stopped in {entry.name} ({why})", str(self._root), do)

    def _failure(self, entry: PhaseRecord, ended: Ended) -> PacelineError:
        """What ended the phase, with the exit code of its command."""
        code = ended.exit_code
        entry.state, entry.tail = FAILED, ended.tail
        how = f"was killed by {describe_signal(-code)}" if code < 0 else f"ended with exit code {code}"
        failed = (f"{row['what']}, {row['value']}" for row in entry.evidence if row["what"].endswith(": fail"))
        said = next((line for line in ended.tail if line.strip()), "") or next(failed, "")
        entry.reason = f"its command {how}" + (f": {said}" if said else "")
        do = "mend what it says above; the same command goes on with this phase"
        error = PacelineError(f"{entry.name} failed: {entry.reason}", entry.command, do)
        error.exit_code = code if code > 0 else 4
        return error

    def _judge(self, record: PlayRecord, entry: PhaseRecord, phase: Phase) -> list[Judged]:
        earlier = {each.name: each.results for each in record.phases if each.has_run}
        conditions = [(text, "") for text in phase.gate] + phase.criteria(entry.results)
        where = self._playbook.where(entry.name, "gate")
        reported = dict.fromkeys(phase.reports.names)
        for text, _ in conditions:
            for name in parse(text, where).names:
                source, _, _ = name.partition(".")
                if source in self._playbook.phases and source not in earlier and not phase.reports.has(name):
                    what = f"the gate of {entry.name} asks for {name}, and {source} has not been run here"
                    raise UsageError(what, where, f"run {source}, too, or change the gate: {entry.name}.gate=…")
        return judge(
            conditions, entry.results, earlier, reported, where, self._playbook.limits, entry.untold, entry.missing
        )

    def _gate_error(self, entry: PhaseRecord, failed: Sequence[Judged]) -> GateError:
        place = self._root / entry.place if entry.place else self._root
        name = entry.name
        do = f"look at {place}; change its settings ({name}.key=value), or its gate ({name}.gate='…': nothing is run again)"
        where = f"{self._playbook.where(name, 'gate')}; evidence in {RunLayout(self._root).report_text}"
        return GateError(problems=[Problem(f"{name}: {each}", where, do) for each in failed])

    def _save(self, record: PlayRecord) -> None:
        self._store.save(record)
        write_pages(record, self._root)


def _read(phase: Phase, work: Work, entry: PhaseRecord) -> Outcome:
    """What the command left; a typed error where that is not what it should be."""
    try:
        return phase.read(work)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"what {entry.name} left cannot be read ({type(error).__name__}: {error})"
        raise PacelineError(what, str(work.place), "look at what lies there, or choose another --out DIR") from error
