"""A member's side: waits for its part, starts and ends ranks as the leader says, and never trains on without the leader.

    Member(door, start, lost_after_s=10, signals=signals, say=print).run()     -> Bye(state="finished", exit_code=0, …)

Without its leader a member ends its ranks at once, so that there are never two trainings of one run, and looks for the leader again: the
link may come back, or the leader may be started anew.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from pathlib import Path

from paceline.errors import Interrupted, PacelineError
from paceline.files import storage_error
from paceline.launch.hosts.channel import Gone
from paceline.launch.hosts.joining import Door, Joined
from paceline.launch.hosts.message import Begin, Bye, End, Leave, Message, Notice, Pulses, Report
from paceline.launch.hosts.share import Share
from paceline.launch.signals import WORDS, OperatorSignals

_POLL_S = 0.05
_LEAVE_S = 60.0
_SLEPT_S = 3.0

Start = Callable[[Begin, int, Path], Share]
"""the part, this host's index, the run directory as this host sees it"""


class Member:
    """One host that follows a leader."""

    def __init__(
        self,
        door: Door,
        start: Start,
        *,
        lost_after_s: float,
        signals: OperatorSignals,
        say: Callable[[str], None],
    ) -> None:
        self._door = door
        self._start = start
        self._lost_after_s = lost_after_s
        self._signals = signals
        self._say = say
        self._share: Share | None = None
        self._leaving_since: float | None = None

    def run(self) -> Bye:
        """Follows until the leader says goodbye; Interrupted where the operator leaves. No rank is left in any case."""
        while True:
            joined = self._door.join()
            if isinstance(joined, Bye):
                return joined
            try:
                bye = self._follow(joined)
            finally:
                joined.channel.close()
                if self._share is not None:
                    self._share.end(is_hasty=True)
                    self._share = None
            if bye is not None:
                return bye

    def _follow(self, joined: Joined) -> Bye | None:
        """None: the leader is lost."""
        looked = time.monotonic()
        while True:
            message: Message | Gone | None = None
            with contextlib.suppress(queue.Empty):
                _, message = joined.inbox.get(timeout=_POLL_S)
            now = time.monotonic()
            if now - looked > _SLEPT_S:
                joined.channel.forgive()
            looked = now
            if isinstance(message, Bye):
                return message
            why = message.why if isinstance(message, Gone) else ""
            if message is None and joined.channel.silent_s > self._lost_after_s:
                why = f"nothing was heard of it for {self._lost_after_s:g} s"
            if why:
                ranks = "; ending the ranks of this host" if self._share is not None else ""
                self._say(f"the leader was lost: {why}{ranks}")
                return None
            self._hear(joined, message)
            self._look(joined)
            self._obey(joined)

    def _hear(self, joined: Joined, message: Message | Gone | None) -> None:
        if isinstance(message, Notice):
            self._say(message.text)
        elif isinstance(message, Begin):
            self._say(f"attempt {message.attempt}: {message.describe()}")
            try:
                self._share = self._start(message, joined.index, joined.root)
            except (PacelineError, OSError) as error:
                told = error if isinstance(error, PacelineError) else storage_error(error, joined.root)
                record = told.to_record() | {"rank": message.first_rank, "step": None, "secondary": False}
                joined.channel.send(Report(message.attempt, told.exit_code, [record]))
        elif isinstance(message, End) and self._share is not None and self._share.begin.attempt == message.attempt:
            self._say(f"ending attempt {message.attempt}: {message.why}")
            self._report(joined, is_hasty=True)

    def _look(self, joined: Joined) -> None:
        if self._share is not None:
            self._share.check()
            pulses = self._share.read_pulses()
            if pulses:
                joined.channel.send(Pulses(self._share.begin.attempt, pulses))
            if self._share.poll() is not None or self._share.is_overdue:
                self._report(joined)

    def _report(self, joined: Joined, *, is_hasty: bool = False) -> None:
        assert self._share is not None
        report = self._share.end(is_hasty=is_hasty)
        self._share = None
        if report.left:
            self._say(f"warning: {report.left}")
        joined.channel.send(report)

    def _obey(self, joined: Joined) -> None:
        """This host's own operator: the first signal asks to leave, the second leaves at once."""
        if self._signals.asked is None:
            return
        now = time.monotonic()
        if self._leaving_since is None:
            self._leaving_since = now
            word = WORDS[self._signals.asked]
            joined.channel.send(Leave(word))
            self._say(f"{word}: leaving the run at the next step; Ctrl-C again leaves at once")
        if self._signals.wants_kill or now - self._leaving_since > _LEAVE_S:
            raise Interrupted("left the run; its leader goes on without this host, if it may")
