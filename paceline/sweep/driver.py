"""Runs a sweep: asks the race what to try next, runs it or finds it in the ledger, hands the result back, writes everything down.

    with open_sweep(root) as ledger:
        ending = Driver(sweep, race, ledger, journal, signals, slots).run()

One loop in one thread, for the full grid and for a race, for one slot and for many. Whatever ends it, no trial is left running, and the
same command goes on where it was.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from paceline.config.source import show
from paceline.errors import PacelineError, StorageError
from paceline.files import storage_errors
from paceline.launch.marked import describe_left
from paceline.launch.signals import OperatorSignals
from paceline.sweep.accident import MEMORY_KILLER, is_disk_full, may_be_memory
from paceline.sweep.evidence import ENDED, Assignment
from paceline.sweep.journal import Journal
from paceline.sweep.ledger import RESULTS, Ledger, Order, Row, differences
from paceline.sweep.matrix import batch_of
from paceline.sweep.measured import Measured, from_record
from paceline.sweep.orders import Orders
from paceline.sweep.outcome import Ending, Sweep
from paceline.sweep.race import Race
from paceline.sweep.ranks import has_rank_table, say_verdicts
from paceline.sweep.results import read_trial
from paceline.sweep.running import Running, describe_ordinal, describe_progress, describe_result
from paceline.sweep.scoreboard import Scoreboard
from paceline.sweep.tables import write_outputs, write_plan
from paceline.sweep.takeover import mark_of, take_over
from paceline.sweep.trial import Slot, Trial, read_tail, train_command
from paceline.sweep.trial_settings import plan_trial

_POLL_S = 0.05


class Driver:
    """One start of a sweep."""

    def __init__(
        self,
        sweep: Sweep,
        race: Race,
        ledger: Ledger,
        journal: Journal,
        signals: OperatorSignals,
        slots: Sequence[Slot],
        *,
        retry_failed: bool = False,
    ) -> None:
        self._sweep = sweep
        self._scores = Scoreboard(race, sweep.settings)
        self._ledger = ledger
        self._journal = journal
        self._signals = signals
        self._free = list(slots)
        self._running: list[Running] = []
        self._again: list[Assignment] = []
        """whose trials came to grief by what may be an accident"""
        self._notes: list[str] = []
        self._retry_up_to = max((row.id for row in ledger.rows()), default=0) if retry_failed else 0
        self._failed: str | None = None
        self._batch = batch_of(sweep.matrix.case(sweep.matrix.baseline))
        self._orders = Orders(sweep)
        self.best: str | None = None
        """the case that won or leads, as was last written"""
        self.rivals: list[str] = []
        """that were not told apart from it, when it was over"""
        self.rank_verdicts: list[str] = []
        """of each trial that counts, where the plan asks for them"""

    def run(self) -> Ending:
        """Until the race is decided, or somebody wants it to end."""
        take_over(self._sweep, self._ledger, self._journal)
        write_plan(self._sweep.root / "plan.yaml", self._sweep.plan.config.model_dump(mode="json"))
        try:
            self._loop()
        except BaseException as error:
            self._end_all()
            if isinstance(error, PacelineError):
                with contextlib.suppress(PacelineError):  # whatever hindered us may hinder this, too
                    self._write(Ending("failed", error.problems[0].what))
            raise
        ending = self._ending()
        self._write(ending)
        return ending

    def _loop(self) -> None:
        while True:
            # No answer: it is decided, or waits for what is running.
            while self._free and not self._is_ending and (assignment := self._next()) is not None:
                self._begin(assignment)
            if not self._running:
                return
            time.sleep(_POLL_S)
            for running in list(self._running):
                self._follow(running)

    def _next(self) -> Assignment | None:
        return self._again.pop(0) if self._again else self._scores.next()

    @property
    def _is_ending(self) -> bool:
        return self._signals.asked is not None or self._failed is not None

    def _ending(self) -> Ending:
        notes = tuple(self._notes)
        if self._signals.asked is not None:
            return Ending("stopped", self._signals.asked, notes)
        if self._failed is not None:
            return Ending("failed", self._failed, notes)
        return Ending("finished", "", notes)

    def _begin(self, assignment: Assignment) -> None:
        """Starts the trial, or takes its result from the ledger."""
        case = self._sweep.matrix.case(assignment.case)
        plan = plan_trial(case, self._sweep.plan, assignment, self._batch)
        order = self._orders.build(assignment, plan, self._free[0])
        known = self._ledger.find(order.key, order.round)
        if known is not None and known.status not in ("ok", "stopped", "running") and known.id <= self._retry_up_to:
            self._ledger.supersede(known.id, f"{known.status}: {known.reason}; run again")
            known = None
        if known is not None and known.status in RESULTS:
            measured = from_record(known.record or {"status": known.status})
            self._scores.observe(known, measured.for_objective(self._sweep.plan.config.objective), assignment)
            return
        self._tell_unlike(order)
        row = self._ledger.claim(order)
        root, slot = self._sweep.root / row.directory, self._free.pop(0)
        log = root.with_name(f"{root.name}.log")
        command = train_command(self._sweep.plan.config.recipe, plan.words, root)
        with storage_errors(root):
            trial = Trial(command, root, log, mark_of(self._ledger, row), slot)
        num_devices = len(slot.visible.split(",")) if slot.visible else max(1, case.placement.num_gpus)
        number = self._scores.num_observed + len(self._running) + 1
        ordinal = describe_ordinal(number, self._scores.full_repeats(), self._sweep)
        self._running.append(Running(ordinal, row, plan, assignment, trial, slot, num_devices, time.monotonic()))
        why = f" ({assignment.why})" if assignment.why else ""
        self._journal.say(f"trial {ordinal}: {case.name}, round {assignment.round}{why}: {row.directory}")

    def _tell_unlike(self, order: Order) -> None:
        """Says, once for each reason, why an earlier result of the same case is not taken."""
        for row in self._ledger.rows():
            if (row.case, row.round) != (order.case, order.round) or row.status not in RESULTS or row.key == order.key:
                continue
            note = f"results of {' and '.join(differences(row, order))} are in the ledger and are not reused"
            if note not in self._notes:
                self._notes.append(note)
                self._journal.say(f"{note} (trial {row.id}: {row.case}, round {row.round})")

    def _follow(self, running: Running) -> None:
        """One look at a trial: has it ended, must it be ended, is it time for a line about it?"""
        trial, config = running.trial, self._sweep.plan.config
        code = trial.poll()
        trial.look()
        if code is None:
            if self._is_ending and running.verdict is None:
                running.verdict = "interrupted"
                trial.ask_to_end()
            elif trial.age_s > config.trial_timeout_s and running.verdict is None:
                running.verdict = "timeout"
                trial.ask_to_end()
            elif trial.broke_at is not None and config.loss_tolerance is not None and running.verdict is None:
                # Its verdict is certain, however fast it is.
                running.verdict = "diverged"
                trial.ask_to_end()
            asked_s = trial.asked_s
            is_over = asked_s is not None and asked_s > config.stop_grace_s
            if not is_over and not self._signals.wants_kill:
                self._tell_progress(running)
                return
        left = trial.kill_all()
        if left:
            self._journal.say(f"warning: {describe_left(left)}")
        self._running.remove(running)
        self._free.append(running.slot)
        self._end(running, trial.poll())

    def _tell_progress(self, running: Running) -> None:
        if time.monotonic() - running.said_at >= self._sweep.plan.config.progress_s:
            running.said_at = time.monotonic()
            self._journal.say(describe_progress(running, self._sweep.unit))

    def _end(self, running: Running, exit_code: int | None) -> None:
        """The trial is over and nothing of it runs: what came of it?"""
        row, trial = running.row, running.trial
        reason = ""
        if running.verdict == "interrupted":
            reason = self._signals.asked or self._failed or ""
        elif running.verdict == "timeout":
            reason = f"it took longer than trial_timeout_s={show(self._sweep.plan.config.trial_timeout_s)}"
        elif running.verdict == "diverged":
            reason = f"the loss is not a number at step {trial.broke_at:,}; it was ended there"
        measured = read_trial(
            trial.root,
            running.plan.span,
            num_devices=running.num_devices,
            began=trial.began,
            ended=trial.ended or time.time(),
            verdict=running.verdict,
            reason=reason,
            exit_code=exit_code,
        )
        if running.verdict == "interrupted":
            self._interrupt(row, reason, measured)
            return
        if may_be_memory(measured, saw_memory_killer=trial.saw_memory_killer):
            if not self._had_accident(row):
                self._interrupt(row, MEMORY_KILLER, measured)
                self._journal.say(f"trial {running.ordinal} was killed, and {MEMORY_KILLER}: once more")
                self._again.append(running.assignment)
                return
            measured = replace(measured, status="oom", reason=f"{measured.reason}; twice, {MEMORY_KILLER}")
        if measured.status not in ENDED:
            if is_disk_full(self._sweep.root, trial.root):
                with contextlib.suppress(PacelineError):  # else the next start finds it running, and marks it
                    self._interrupt(row, "the disk was full", measured)
                do = "free some space; the same command goes on where it was"
                raise StorageError("the disk is full", str(self._sweep.root), do)
            measured = replace(measured, tail=tuple(read_tail(trial, self._sweep.plan.config.tail_lines)))
        self._ledger.finish(row.id, measured.status, measured.reason, measured.to_record())
        self._tell_result(running, measured)
        self._scores.observe(self._ledger.row(row.id), measured, running.assignment)
        self._write(Ending("running", "", tuple(self._notes)))
        if measured.status not in ENDED and self._sweep.plan.config.stop_on_error:
            self._failed = f"trial {row.id} ({row.case}) {measured.status}: {measured.reason}"

    def _interrupt(self, row: Row, reason: str, measured: Measured) -> None:
        """Its numbers count for nothing, but it has cost something."""
        self._ledger.finish(row.id, "interrupted", reason, replace(measured, status="interrupted").to_record())

    def _had_accident(self, row: Row) -> bool:
        """Whether the same trial was already once killed while memory was short."""
        tried = [other for other in self._ledger.rows() if (other.key, other.round) == (row.key, row.round)]
        return any(other.reason == MEMORY_KILLER for other in tried)

    def _tell_result(self, running: Running, measured: Measured) -> None:
        self._journal.say(describe_result(running, measured, self._sweep.unit, self._sweep.plan.config.objective))
        for line in measured.tail:
            self._journal.say(f"    {line}")

    def _write(self, ending: Ending) -> None:
        described = self._scores.describe(self._sweep, self._ledger.rows(), ending)
        self.best, self.rivals = described["best"], described["rivals"]
        self.rank_verdicts = say_verdicts(described) if has_rank_table(described) else []
        write_outputs(self._sweep, described)

    def _end_all(self) -> None:
        for running in self._running:
            running.trial.kill_all()
        self._running = []
