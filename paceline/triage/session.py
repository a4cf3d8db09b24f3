"""One triage from what was typed to its outcome: finds the subject and the symptom, opens the ledger, climbs.

session = Session("runs/mine", [], {}, Options(symptom=None), say)
outcome = session.run()        session.cure_command(outcome)  -> ["paceline", "train", …]
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.config.source import show
from paceline.diagnose.examine import examine_run
from paceline.errors import OccupiedError, UsageError
from paceline.files import Lock, storage_errors
from paceline.launch.signals import OperatorSignals
from paceline.recipes.job import Flags
from paceline.sweep.fingerprint import describe_surroundings, digest_of
from paceline.triage.changes import can_go_on, changes_identity, replace_words
from paceline.triage.climb import Climb, Outcome, Say
from paceline.triage.ladder import Ladder, load_ladder
from paceline.triage.ledger import Ledger
from paceline.triage.page import write_outcome
from paceline.triage.subject import Subject, find_subject
from paceline.triage.trials import Trials
from paceline.triage.verdict import find_symptom, symptom_of


@dataclass(frozen=True)
class Options:
    """What a person may decide."""

    symptom: str | None = None
    ladder: str | None = None
    """a file in place of the shipped one"""
    steps: int | None = None
    out: Path | None = None


class Session:
    """One triage; its directory is taken while it runs."""

    def __init__(self, target: str, overrides: Sequence[str], flags: Flags, options: Options) -> None:
        self.subject = find_subject(target, overrides, flags)
        self._options = options
        self.out = (options.out or _default_out(self.subject)).absolute()

    def run(self, say: Say) -> Outcome:
        """The outcome, which is in triage.json and triage.md by then."""
        lock = Lock(self.out / ".lock")
        with storage_errors(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
            is_free = lock.acquire()
        if not is_free:
            raise OccupiedError(
                "another triage runs in this directory", str(self.out), "wait for it, or give --out DIR"
            )
        try:
            with OperatorSignals() as signals:
                outcome = self._climb(say, signals)
        finally:
            lock.release()
        with storage_errors(self.out):
            write_outcome(outcome, self.out, self.cure_command(outcome))
        return outcome

    def cure_arguments(self, outcome: Outcome) -> tuple[str, list[str], str, str] | None:
        """(target, overrides, --out, --resume) that go on with the cure; None where there is none."""
        if outcome.cure is None or outcome.state != "cured":
            return None
        subject, settings = self.subject, outcome.cure.settings
        words = [f"{name}={show(value)}" for name, value in settings.items()]
        if subject.root is None:
            return subject.target, replace_words([*subject.overrides, *words]), "", "auto"
        overrides = replace_words([*subject.overrides, *words])
        if changes_identity(subject, settings):
            # Another training: it forks, or begins anew, and the run stays what it was.
            can_fork = subject.checkpoint is not None and can_go_on(subject, settings)
            return subject.target, overrides, f"{subject.root}-cured", str(subject.checkpoint) if can_fork else "never"
        return subject.target, overrides, str(subject.root), "auto"

    def cure_command(self, outcome: Outcome) -> list[str] | None:
        arguments = self.cure_arguments(outcome)
        if arguments is None:
            return None
        target, overrides, out, resume = arguments
        place = ["--out", out] if out else []
        return ["paceline", "train", target, *overrides, *place, *(["--resume", resume] if resume != "auto" else [])]

    def _climb(self, say: Say, signals: OperatorSignals) -> Outcome:
        symptom = self._options.symptom
        if symptom is None and self._options.ladder is None and self.subject.run is not None:
            found = [finding for finding in examine_run(self.subject.run) if finding.severity != "note"]
            symptom = find_symptom(finding.kind for finding in found)
            if symptom is not None:
                say(f"symptom: {symptom}, as the run itself shows")
        if symptom is None and self._options.ladder is None:
            symptom = self._look(say, signals)
        ladder = load_ladder(self._options.ladder or str(symptom))
        with self._climber(ladder, say, signals) as climb:
            return climb.run()

    def _look(self, say: Say, signals: OperatorSignals) -> str:
        """Nobody knows what to look for: a trial of the run as it is shows it."""
        with self._climber(load_ladder("deadlock"), say, signals) as climb:
            entry = climb.try_once("reproduce", "", {})
        found = symptom_of(entry.verdict)
        if found is None:
            what = f"nothing is wrong in {entry.last_step or 0} steps" if entry.status == "healthy" else entry.what
            do = "say what is wrong with --symptom, or give more --steps"
            raise UsageError(f"no symptom was found: {what}", f"{self.out}/{entry.directory}", do)
        say(f"symptom: {found}, as the trial shows")
        return found

    @contextlib.contextmanager
    def _climber(self, ladder: Ladder, say: Say, signals: OperatorSignals) -> Iterator[Climb]:
        subject = self.subject
        steps = subject.trial_steps(self._options.steps, ladder.config.steps)
        surroundings = describe_surroundings([subject.job])
        where = [surroundings.hardware_digest, surroundings.code_digest(subject.job)]
        what = [subject.job.config.model_dump(mode="json"), str(subject.checkpoint), steps, ladder.config.set]
        with storage_errors(self.out):
            ledger = Ledger(self.out / "ledger.jsonl", digest_of([*where, *what])[:16])
        if ledger.num_foreign:
            say(f"{ledger.num_foreign} trials of other code, settings or length do not count")
        trials = Trials(subject, ladder, steps, self.out, signals)
        try:
            yield Climb(subject, ladder, ledger, trials.run, say)
        finally:
            ledger.close()


def _default_out(subject: Subject) -> Path:
    if subject.root is not None:
        return Path(f"{subject.root}-triage")
    return Path("runs") / f"triage-{digest_of(subject.job.config.model_dump(mode='json'))[:8]}"
