"""Supervises one attempt: looks, records what is found, opens and closes incidents, and acts as the policy says.

    supervisor = Supervisor(layout, run, attempt, settings)
    while supervisor.is_running: supervisor.poll(); supervisor.wait()

Findings that are no emergency are events. A critical one is an incident, with the stacks of all ranks; it is acted upon only if it still
holds some seconds later. Which one it is, the docket knows; who is told, and how often, the announcer. Of several hosts each has one: it
acts on what it can prove of its own ranks, and the one to which all pulses come on what it finds by comparing them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from paceline.diagnose.advice import fit_keys
from paceline.diagnose.finding import Finding
from paceline.diagnose.naming import name_host
from paceline.diagnose.order import order_causes
from paceline.diagnose.sight import Sight
from paceline.diagnose.stacks import cluster_stacks, weigh_stacks
from paceline.diagnose.unseen import OTHER_HOST
from paceline.errors import UsageError
from paceline.files import identify_file
from paceline.launch.marked import describe_left
from paceline.supervise.announcer import Announcer, Tell, said
from paceline.supervise.contribution import Contribution
from paceline.supervise.curves import Curves
from paceline.supervise.docket import Docket
from paceline.supervise.ending import close_books
from paceline.supervise.excuses import DEATHS, Excuses
from paceline.supervise.incident import Incident
from paceline.supervise.settings import Settings
from paceline.supervise.stacks import take_stacks
from paceline.supervise.station import Station, find_station
from paceline.supervise.watching import build_watch
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.policy_request import read_policy_request
from paceline.telemetry.run_file import FOREIGN_RECIPE, SDK_RECIPE, Attempt, RunFile, load_run_file
from paceline.telemetry.stop_request import write_stop_request

LOOK_EVERY_S = 0.25
_CALM_EVERY_S = 0.5
"""while all ranks get on: a process that ends wakes us anyway"""
_RUN_EVERY_S = 1.0
_STANDS_STILL = ("stall", "stopped", *DEATHS)
"""kinds after which an attempt cannot go on by itself, and another one may"""


class Supervisor:
    """One attempt, from its first pulse to its end."""

    def __init__(
        self,
        layout: RunLayout,
        run: RunFile,
        attempt: Attempt,
        settings: Settings,
        tell: Tell | None = None,
        station: Station | None = None,
    ) -> None:
        """`tell` hears of every incident in another way than by the disk, which may be full. `station`: where it stands; by the name of
        this machine, if nobody says."""
        self.settings = settings
        self.is_running = True
        self.sight: Sight | None = None
        self.findings: list[Finding] = []
        """what holds now"""
        self._is_calm = False
        self._configured = settings
        self._layout = layout
        self._recipe = run.recipe
        self._attempt = attempt
        self._station = station or find_station(attempt)
        self.watch = build_watch(layout, run, attempt, settings, self._station)
        self._curves = Curves(layout, attempt.attempt) if self._station.is_leader else None
        is_ours = run.recipe not in (SDK_RECIPE, FOREIGN_RECIPE)
        self._excuses = Excuses(layout, attempt.attempt, is_ours=is_ours)
        self._announcer = Announcer(layout, attempt.attempt, tell)
        self._docket = Docket(layout, attempt.attempt, self._station.host_index)
        self._far = {
            rank: attempt.host_of(rank) for rank in range(attempt.world_size) if not self._station.is_here(rank)
        }
        """rank -> its host, of those that are not here"""
        self._contribution = Contribution(layout, attempt.attempt, self._station) if self._far else None
        self._asked_run = time.monotonic()
        self._read_run: tuple[int, ...] | None = None
        """which run.json was read last"""

    @property
    def incidents(self) -> list[Incident]:
        """All that were open since it began to look, the first noticed first."""
        return self._docket.incidents

    def poll(self) -> None:
        """One look, and what follows from it."""
        before = self.sight
        self.sight, found = self.watch.look()
        self._is_calm = before is not None and _has_moved(before, self.sight)
        for incident in self._docket.take_acted(self.sight):
            self._kill(incident)
        everything = [*map(self._excuses.explain, found), *(self._curves.judge() if self._curves is not None else ())]
        told = [fit_keys(finding, self._recipe) for finding in everything if not self._is_excused(finding)]
        self.findings = order_causes([name_host(finding, self._attempt) for finding in told])
        critical = [finding for finding in self.findings if finding.severity == "critical"]
        for finding in self.findings:
            if finding.severity != "critical":
                self._announcer.note(finding, self.findings)
        for finding in critical:
            known = self._docket.find(finding)
            if known is None:
                self._begin(finding, [each for each in self.findings if each is not finding])
            else:
                self._go_on(known, finding)
        for incident in self._docket.end_others(critical):
            self._end(incident)
        self._look_at_run()

    def wait(self, seconds: float | None = None) -> None:
        """Until it is time to look again."""
        self.watch.eye.wait(seconds if seconds is not None else _CALM_EVERY_S if self._is_calm else LOOK_EVERY_S)

    def wake_on(self, descriptor: int) -> None:
        self.watch.eye.wake_on(descriptor)

    def close(self) -> None:
        """The attempt is over: incidents that are still open end with it."""
        for incident in self._docket.close():
            self._end(incident)
        self.watch.close()

    def give_up(self, error: Exception) -> None:
        """Something went wrong here that nobody foresaw: the run says so, because somebody may count on us."""
        log = self._layout.supervisor_log_of(self._station.host_index).relative_to(self._layout.root)
        why = f"{type(error).__name__}: {error}; see {log}"
        self._announcer.write_event("warning", what="the supervisor of this attempt failed", why=why)

    def _is_excused(self, finding: Finding) -> bool:
        has_killed = any(incident.action in ("killed", "restarted") for incident in self.incidents)
        return (finding.kind in DEATHS and has_killed) or self._excuses.cover(finding)

    def _begin(self, finding: Finding, others: Sequence[Finding]) -> None:
        assert self.sight is not None
        incident = self._docket.begin(finding, others, self.sight, self.settings.policy)
        if incident.is_told:
            return  # by whoever supervised before us
        with said("an incident cannot be written"):
            incident.open()
        if self._announcer.is_due(incident):
            self._report(incident)

    def _report(self, incident: Incident) -> None:
        """With the stacks of this time."""
        if incident.finding.kind in _STANDS_STILL:
            self._take_stacks(incident)
        self._announcer.publish(incident)

    def _take_stacks(self, incident: Incident) -> None:
        with said("stacks cannot be taken, or written"):
            stacks = take_stacks(self._layout, self.watch.processes, self._attempt.world_size, self._far)
            clusters = cluster_stacks(stacks.texts)
            finding = incident.finding
            if not self._far or finding.rank in self.watch.processes:
                # Else nobody of those whose stacks are here is accused, and the odd one among some is not the odd one among all.
                finding = weigh_stacks(finding, clusters)
            incident.add_stacks(finding, stacks, clusters)

    def _go_on(self, incident: Incident, finding: Finding) -> None:
        """It still holds: the policy acts, when its stacks are there."""
        is_to_act = self._is_to_act(incident, finding)
        if not incident.is_told and (is_to_act or self._announcer.is_due(incident)):
            self._report(incident)
        if not is_to_act:
            return
        if finding.kind in _STANDS_STILL:
            self._kill(incident)
        else:
            self._ask(incident)

    def _is_to_act(self, incident: Incident, finding: Finding) -> bool:
        if incident.action != "none" or self.settings.policy == "note" or finding.kind == "disk_full":
            return False  # who has no room left ends by itself
        if finding.cause == OTHER_HOST and not self._station.is_leader:
            return False  # its own ranks only wait: who sees the others, acts
        # Not yet: a launcher ends the others by itself when one has died, and knows more about how; who is stopped may be let go again;
        # and who is noticed early may go on.
        return self._over_s(incident, finding) >= self.settings.stall_floor_s

    def _over_s(self, incident: Incident, finding: Finding) -> float:
        """For how long it has been wrong: of a stall beyond its limit, which it is told before, or beyond that of a policy, where the
        phase has one; of all else, since it was noticed."""
        if finding.kind == "stall":
            return finding.numbers["held_s"] - finding.numbers.get("act_s", finding.numbers["limit_s"])
        assert self.sight is not None
        return self.sight.monotonic - incident.sight.monotonic

    def _kill(self, incident: Incident) -> None:
        incident.policy = self.settings.policy
        incident.action = "restarted" if self.settings.policy == "restart" else "killed"
        # Told before the deed: the launcher sees ranks die, and must know already of what.
        self._announcer.publish(incident)
        left = self.watch.kill()
        if left:
            self._announcer.write_event("warning", what=describe_left(left), why=incident.place)
        incident.ended = time.time()
        self._announcer.write(incident)
        owners = [seen for seen in incident.sight.ranks if seen.process and seen.process.pid == self._attempt.owner_pid]
        with said("the end of the attempt cannot be written"), contextlib.suppress(UsageError):
            if owners and self._station.is_leader:  # nobody is left who could say how it ended
                close_books(self._layout, self._attempt.attempt, describe(incident), incident.finding.step)

    def _ask(self, incident: Incident) -> None:
        """The ranks still get on: they stop together, and leave a checkpoint."""
        incident.policy, incident.action = self.settings.policy, "asked"
        self._announcer.publish(incident)
        with said("nobody can be asked to stop"):
            write_stop_request(self._layout.stop_request, self._attempt.attempt, "halted", f"incident {incident.name}")

    def _end(self, incident: Incident) -> None:
        incident.ended = incident.ended or time.time()
        self._announcer.write(incident)

    def _look_at_run(self) -> None:
        """Now and then: whether the attempt still is what run.json says is running."""
        if time.monotonic() - self._asked_run < _RUN_EVERY_S:
            return
        self._asked_run = time.monotonic()
        if self._contribution is not None:
            with said("stacks cannot be added to an incident of another host"):
                self._contribution.look(self.watch.processes)
            with said("stacks of another host cannot be taken in"):
                for incident in self.incidents:
                    if incident.ended is None and incident.take_in_stacks():
                        self._announcer.write(incident)
        wished = read_policy_request(self._layout.policy_requests, self._attempt.attempt)
        policy = wished or self._configured.policy
        if policy != self.settings.policy:
            why = "as paceline watch asks" if wished else "as configured"
            self._announcer.write_event("note", what=f"supervise.policy={policy} from here on", why=why)
            self.settings = replace(self.settings, policy=policy)
        with contextlib.suppress(UsageError, OSError):
            version = identify_file(self._layout.run)
            if version is not None and version == self._read_run:
                return
            run = load_run_file(self._layout.root)
            self._read_run = version
            last = run.attempts[-1] if run is not None and run.attempts else None
            self.is_running = last is not None and last.attempt == self._attempt.attempt and last.state == "running"


def describe(incident: Incident) -> str:
    """Why an attempt was ended, in one line."""
    return f"halted by its supervisor: {incident.finding.what} ({incident.place})"


def _has_moved(before: Sight, now: Sight) -> bool:
    """Every rank of this host, and there is none without a pulse; from others pulses come when they come."""
    pairs = zip(before.ranks, now.ranks, strict=False)
    return all(
        (after.pulse is not None and after.pulse is not earlier.pulse) or after.hearsay is not None
        for earlier, after in pairs
    )
