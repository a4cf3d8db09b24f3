"""One attempt from the launcher's side: starts the agent, shows progress, passes on requests to stop, and gives a verdict.

Whatever happens, no process is left, unless it cannot be killed: that one is named, and not waited for.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from paceline.errors import PacelineError
from paceline.files import read_records, write_json
from paceline.launch.claim import Claim
from paceline.launch.marked import describe_left
from paceline.launch.process import KILLED, Agent
from paceline.launch.signals import WORDS, OperatorSignals
from paceline.launch.verdict import Evidence, Verdict, judge
from paceline.telemetry.stop_request import read_stop_request, write_stop_request

if TYPE_CHECKING:
    from paceline.launch.hosts.parts import Parts
    from paceline.launch.progress import Progress
    from paceline.launch.warm import WarmAgent

_POLL_S = 0.1
ENDING_S = 75.0
"""after a rank has failed, or the supervisor has ended the ranks: torchrun gives the others 30 s to end by themselves and 30 s to die, and
some versions of it wait for ever for one that cannot be killed"""


class Supervision(Protocol):
    """Who watches the ranks from beside, as far as a session has to know."""

    incidents: list[dict[str, Any]]

    def check(self) -> None: ...

    def close(self, *, is_hasty: bool = False) -> None: ...


class Peers(Protocol):
    """The other hosts of an attempt, as far as a session has to know."""

    @property
    def is_over(self) -> bool:
        """Whether the attempt cannot go on, because of one of them."""

    @property
    def wants_resize(self) -> str:
        """Why the ranks should stop for an attempt of another size; empty: they should not."""

    def poll(self) -> None: ...

    def finish(self, why: str, *, is_well: bool, is_hasty: bool = False) -> Parts: ...


class Session:
    """A claimed run whose agent has been started."""

    def __init__(
        self,
        claim: Claim,
        command: Sequence[str],
        environment: Mapping[str, str],
        rendezvous_id: str,
        signals: OperatorSignals,
        warm: WarmAgent | None = None,
        examine: Callable[[], PacelineError | None] | None = None,
        supervise: Callable[[], Supervision] | None = None,
        peers: Peers | None = None,
    ) -> None:
        """`examine` is called beside the start of the ranks, which takes longer; the error it finds ends the attempt.

        `supervise` starts somebody to watch the ranks, when they are on their way. `peers` are hosts with ranks of their own."""
        self._claim = claim
        self._environment = environment
        self._signals = signals
        self._peers = peers
        self._parts: Parts | None = None
        self._agent_exit: int | None = None
        self._has_asked = False
        self._has_resized = False
        self._killed = False
        self._ending_since: float | None = None
        self._agent = Agent(command, environment, claim.layout.launcher_log, rendezvous_id, warm)
        self._record = threading.Thread(target=self._write_record, name="env-record", daemon=True)
        self._record.start()
        self._supervision = supervise() if supervise is not None else None
        self._refusal: PacelineError | None = None
        self._examine = examine
        self._examination = threading.Thread(target=self._look, name="preflight", daemon=True)
        self._examination.start()

    def follow(self, progress: Progress) -> Verdict:
        """Waits for the end of the attempt."""
        try:
            while self._agent.poll() is None and not self._must_end():
                self._pass_on(progress)
                if self._peers is not None:
                    self._peers.poll()
                if self._supervision is not None:
                    self._supervision.check()
                progress.poll()
                time.sleep(_POLL_S)
        finally:
            agent_exit = self._agent.poll()
            left = self.end()
        self._agent_exit = KILLED if agent_exit is None else agent_exit
        if self._peers is not None:
            is_hasty = self._killed or self._refusal is not None
            self._parts = self._peers.finish("it is over on the leader", is_well=agent_exit == 0, is_hasty=is_hasty)
        self._record.join(timeout=5)
        self._examination.join(timeout=5)
        if left:
            progress.say(f"warning: {describe_left(left)}", "yellow")
        progress.close()
        has_left = bool(left) or (self._parts is not None and self._parts.has_left)
        return replace(self._judge(progress.step), has_left=has_left)

    def end(self) -> list[int]:
        """Ends every process of the attempt; returns the pids that did not go."""
        if self._supervision is not None:
            # First, and in haste where it is we who send the ranks away: their death is no incident.
            self._supervision.close(is_hasty=self._killed or self._refusal is not None)
        return self._agent.kill_all()

    def _must_end(self) -> bool:
        is_over = self._peers is not None and self._peers.is_over
        return self._killed or self._refusal is not None or is_over or self._is_overdue()

    def _is_overdue(self) -> bool:
        """Whether the attempt has been ending for so long that its agent will not come to it."""
        told = self._supervision.incidents if self._supervision is not None else []
        is_ending = bool(self._agent.failures) or any(each.get("action") in ("killed", "restarted") for each in told)
        if is_ending and self._ending_since is None:
            self._ending_since = time.monotonic()
        return self._ending_since is not None and time.monotonic() - self._ending_since > ENDING_S

    def _pass_on(self, progress: Progress) -> None:
        """Tells the ranks what the operator asks for, once."""
        if self._signals.wants_kill:
            self._killed = True
            progress.say("killing all ranks", "yellow")
        elif self._signals.asked is not None and not self._has_asked:
            self._has_asked = True
            word = WORDS[self._signals.asked]
            try:
                write_stop_request(
                    self._claim.layout.stop_request, self._claim.attempt, self._signals.asked, "paceline train"
                )
            except OSError:
                # A full disk. The agent passes SIGTERM on to every rank, which stops them just as well.
                self._agent.terminate()
            progress.say(f"{word}: all ranks stop at the next step; Ctrl-C again kills them", "yellow")
        elif self._peers is not None and self._peers.wants_resize and not (self._has_asked or self._has_resized):
            self._has_resized = True
            progress.say(f"{self._peers.wants_resize}: all ranks stop at the next step, for an attempt of another size")
            request, attempt = self._claim.layout.stop_request, self._claim.attempt
            if read_stop_request(request, attempt) is None:  # somebody may want it to end altogether
                with contextlib.suppress(OSError):
                    write_stop_request(request, attempt, "resize", "paceline train")

    def _look(self) -> None:
        if self._examine is not None:
            self._refusal = self._examine()

    def _judge(self, last_step: int | None) -> Verdict:
        if self._refusal is not None:
            what = self._refusal.problems[0].what
            return Verdict("failed", what, last_step, self._refusal.exit_code, self._refusal)
        events = [e for e in read_records(self._claim.layout.events) if e.get("attempt") == self._claim.attempt]
        mine = Evidence(
            agent_exit=self._agent_exit,
            failures=self._agent.failures,
            exits=self._agent.exits(),
            events=events,
            asked=self._signals.asked,
            killed=self._killed,
            last_step=last_step,
            incidents=list(self._supervision.incidents) if self._supervision is not None else [],
            tail=list(self._agent.tail),
            logs=f"{self._claim.layout.launcher_log.parent}/",
        )
        return judge(self._parts.add_to(mine) if self._parts is not None else mine)

    def _write_record(self) -> None:
        from paceline.launch.record import describe_environment

        # A full disk is reported by the workers, who cannot go on without it.
        with contextlib.suppress(OSError):
            write_json(self._claim.layout.environment, describe_environment(self._environment))
