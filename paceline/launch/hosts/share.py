"""One member's share of an attempt: its agent with the ranks below it, their supervisor, and the report when all of it has ended.

    share = Share(layout, begin, index=1, command=[…], environment={…})
    while share.poll() is None: share.check()
    share.end()      -> Report: whatever happened, no process of it is left, unless it cannot be killed

The run's own files belong to the leader: what is this host's alone has the host's index in its name.
"""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paceline.files import write_json
from paceline.launch.hosts.message import Begin, Report
from paceline.launch.marked import describe_left
from paceline.launch.process import KILLED, Agent
from paceline.launch.session import ENDING_S, Supervision
from paceline.launch.warm import WarmAgent
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import create_pulse_directory, raw_pulse, remove_pulse_directory

_TAIL_LINES = 60
_PULSES_EVERY_S = 0.5


class Share:
    """Started ranks of this host."""

    def __init__(
        self,
        layout: RunLayout,
        begin: Begin,
        index: int,
        command: Callable[[Path], Sequence[str]],
        environment: Mapping[str, str],
        warm: WarmAgent | None = None,
        supervise: Callable[[Path], Supervision] | None = None,
    ) -> None:
        """`command` gets the directory of the pulses, below which torchrun may put its files, and `supervise` the same."""
        self.begin = begin
        self._layout = layout
        self._environment = environment
        self._index = index
        self._pulses = create_pulse_directory(begin.run_id, begin.attempt)
        self._ending_since: float | None = None
        self._report: Report | None = None
        self._told = 0.0
        log = layout.member_log(index)
        self._agent = Agent(command(self._pulses), environment, log, begin.rendezvous_id, warm)
        self._supervision = supervise(self._pulses) if supervise is not None else None
        threading.Thread(target=self._write_record, name="env-record", daemon=True).start()

    def poll(self) -> int | None:
        """The agent's exit code; None while it runs."""
        return self._agent.poll()

    def check(self) -> None:
        if self._supervision is not None:
            self._supervision.check()

    def read_pulses(self) -> dict[str, str]:
        """Where each rank is, for the leader, which compares all of them; empty: it is not time yet."""
        now = time.monotonic()
        if now - self._told < _PULSES_EVERY_S:
            return {}
        self._told = now
        found = {str(rank): raw_pulse(self._pulses, rank) for rank in self.begin.ranks}
        return {rank: base64.b64encode(data).decode() for rank, data in found.items() if data}

    @property
    def is_overdue(self) -> bool:
        """Whether a rank failed so long ago that torchrun will not come to an end with the others."""
        if self._agent.failures and self._ending_since is None:
            self._ending_since = time.monotonic()
        return self._ending_since is not None and time.monotonic() - self._ending_since > ENDING_S

    def end(self, *, is_hasty: bool = False) -> Report:
        """Ends every process; in haste where it is not the ranks' own end that the supervisor could still look at."""
        if self._report is None:
            if self._supervision is not None:
                self._supervision.close(is_hasty=is_hasty)
            agent_exit = self._agent.poll()
            left = self._agent.kill_all()
            remove_pulse_directory(self._pulses)
            self._report = Report(
                self.begin.attempt,
                KILLED if agent_exit is None else agent_exit,
                list(self._agent.failures),
                [[each.rank, each.exit_code, each.pid] for each in self._agent.exits()],
                list(self._supervision.incidents) if self._supervision is not None else [],
                list(self._agent.tail)[-_TAIL_LINES:],
                describe_left(left) if left else "",
            )
        return self._report

    def _write_record(self) -> None:
        from paceline.launch.record import describe_environment

        with contextlib.suppress(OSError):  # a full disk is reported by the ranks
            write_json(self._layout.member_environment(self._index), describe_environment(self._environment))
