"""Everything through which one rank of a foreign loop writes, for one attempt: thread, tables, pulse, what the ranks agree on.

Rank 0 has claimed the attempt when it begins. Every other rank looks for it in run.json, beside its training: none waits for another.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.files import Lock, read_records, write_json
from paceline.telemetry.compiling import CompileAnnouncer
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.machine import ask_driver, describe_machine
from paceline.telemetry.pulse import PulseWriter, create_pulse_directory
from paceline.telemetry.sdk.agreement import Agreement
from paceline.telemetry.sdk.claim import SdkClaim, find_attempt
from paceline.telemetry.sdk.ending import Ending
from paceline.telemetry.sdk.ranks import Rank
from paceline.telemetry.sdk.rows import Rows
from paceline.telemetry.sdk.scribe import LOG, Scribe
from paceline.telemetry.stack_file import StackFile, answer_requests

_HEARD_S = 2.0
_DESCRIBED_S = 5.0
_FOUND_S = 120.0


class Link:
    """One per rank and attempt."""

    def __init__(
        self,
        layout: RunLayout,
        rank: Rank,
        claim: SdkClaim | None,
        heartbeat_s: float,
        collect: Callable[[], dict[str, Any]],
    ) -> None:
        self.attempt: int | None = None
        self.pulse: PulseWriter | None = None
        self.agreement: Agreement | None = None
        self.rows: Rows | None = None
        self.scribe = Scribe(layout, rank.rank, heartbeat_s, collect, self._watch)
        self._layout = layout
        self._rank = rank
        self._claim = claim
        self._stacks: StackFile | None = None
        self._announcer: CompileAnnouncer | None = None
        self._workers_lock = Lock(layout.workers_lock)
        # A thread of its own, because the driver may take seconds to answer: heartbeats do not wait for it.
        self._describer = threading.Thread(target=self._describe, name="paceline-env", daemon=True)
        self._complains_at, self._has_complained = time.monotonic() + _FOUND_S, False
        if claim is not None:
            self.agreement = claim.agreement
            self.rows = Rows(layout, claim.attempt, self.scribe.say)
            self._settle(claim.run.id, claim.attempt)

    def start(self) -> None:
        self.scribe.start()
        if self._claim is not None:
            self._describer.start()

    def end(self, ending: Ending, step: int) -> None:
        """Writes how it ended, as far as that is this rank's to say, and lets go of everything."""
        self.scribe.hasten()
        if self.pulse is not None:
            self.pulse.beat(step, "end")
        peer = self.agreement.failed_rank if self.agreement is not None else None
        is_first = self._claim is not None
        if ending.failure is not None:
            place = {"rank": self._rank.rank, "step": step, "secondary": is_first and peer is not None}
            self.scribe.write_event("failure", **ending.failure, **place)
        elif is_first:
            self.scribe.write_event("end", state=ending.state, reason=ending.reason, step=step)
        if self.rows is not None:
            self.scribe.hand(self.rows.close)
        self.scribe.close()
        if self._claim is not None:
            self._describer.join(_DESCRIBED_S)
            self._hear()
            try:
                self._claim.finish(ending.state, ending.reason, step, ending.exit_code)
            except OSError as error:
                LOG.warning("cannot write how this run ended: %s", error)
            self._claim.release()
        elif ending.failure is not None and self.agreement is not None:
            self.agreement.tell_failure(self._rank.rank, _HEARD_S)
        for held in (self._announcer, self.agreement, self.pulse):
            if held is not None:
                held.close()
        self._workers_lock.release()

    def forget(self) -> None:
        """In a forked process: a copy of a lock must not outlive the rank that holds it."""
        self._workers_lock.release()
        if self._claim is not None:
            self._claim.forget()

    def _watch(self) -> None:
        """Called several times a second by the scribe's thread."""
        if self._stacks is not None:
            self._stacks.check_handler()
        if self._announcer is not None:
            self._announcer.register()
        if self.attempt is None:
            self._look_for_attempt()
        elif self.scribe.events is None:
            self.scribe.attach(self.attempt)
        elif self._claim is not None:
            self._hear()

    def _look_for_attempt(self) -> None:
        found = find_attempt(self._layout, self._rank)
        if found is not None:
            run_id, attempt = found
            self._settle(run_id, attempt)
            self.scribe.attach(attempt)
        elif not self._has_complained and time.monotonic() > self._complains_at:
            self._has_complained = True
            text = (
                f"rank {self._rank.rank} finds no attempt of its launch in {self._layout.root}, and writes nothing yet"
            )
            LOG.warning("%s; does rank 0 call start_run with the same directory?", text)

    def _settle(self, run_id: str, attempt: int) -> None:
        """Opens what lies in shared memory. Where that is full, the run goes without."""
        try:
            directory = create_pulse_directory(run_id, attempt)
            pulse = PulseWriter(directory, self._rank.rank, attempt)
            if self._claim is None and self._rank.is_one_host:
                self.agreement = Agreement(directory, create=False)
            self.pulse = pulse
            self._announcer = CompileAnnouncer(pulse)
        except OSError as error:
            LOG.warning("this run has no pulse: %s", error)
        with contextlib.suppress(OSError):
            self._workers_lock.acquire(shared=True)
        self._stacks = answer_requests(self._layout.stacks(self._rank.rank), self._rank.rank, attempt)
        self.attempt = attempt

    def _hear(self) -> None:
        """A failed peer ends this rank, too, and soon: what run.json says must be written before."""
        agreement, claim = self.agreement, self._claim
        if agreement is None or claim is None or agreement.failed_rank is None:
            return
        failures = [e for e in read_records(self._layout.events) if e.get("kind") == "failure"]
        mine = [e for e in failures if e.get("attempt") == claim.attempt and e.get("rank") == agreement.failed_rank]
        what = mine[-1]["problems"][0]["what"].splitlines()[0] if mine else "see its output"
        step = int(mine[-1]["step"]) if mine else self.pulse.step if self.pulse is not None else 0
        exit_code = int(mine[-1]["exit_code"]) if mine else 1
        claim.finish("failed", f"rank {agreement.failed_rank}: {what}", step, exit_code)
        agreement.hear_failure()

    def _describe(self) -> None:
        """env.json, once."""
        try:
            gpus, driver = ask_driver()
            write_json(self._layout.environment, describe_machine(os.environ, Path.cwd(), gpus, driver))
        except OSError as error:
            LOG.warning("cannot write what this run is running on: %s", error)
