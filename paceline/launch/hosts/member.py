"""A member's side: finds the leader, waits for its part, starts and ends ranks as it is told, and never trains on without the leader.

    member = Member(endpoint, hello, start, timeout_s=300, lost_after_s=10, signals=signals, say=print)
    member.run()     -> Bye(state="finished", exit_code=0, …), or RendezvousError: no leader within the time

Without its leader a member ends its ranks at once, so that there are never two trainings of one run, and looks for the leader again: the
link may come back, or the leader may be started anew.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import time
from collections.abc import Callable
from pathlib import Path

from paceline.errors import Interrupted, RendezvousError, error_from_record
from paceline.launch.hosts.channel import Channel, Gone, Inbox
from paceline.launch.hosts.endpoint import Endpoint, resolve
from paceline.launch.hosts.leader import read_nonce
from paceline.launch.hosts.message import Begin, Bye, End, Hello, Leave, Message, Notice, Ready, Refused, Welcome
from paceline.launch.hosts.share import Share
from paceline.launch.signals import WORDS, OperatorSignals

_POLL_S = 0.05
_CONNECT_S = 3.0
_ANSWER_S = 10.0
_NONCE_S = 10.0
"""a network file system may show a new file late"""
_AGAIN_S = (0.2, 0.5, 1.0, 2.0)
_SAY_EVERY_S = 10.0
_LEAVE_S = 60.0
_SLEPT_S = 3.0

Start = Callable[[Begin, int, Path], Share]
"""the part, this host's index, the run directory as this host sees it"""


class Member:
    """One host that follows a leader."""

    def __init__(
        self,
        endpoint: Endpoint,
        hello: Hello,
        start: Start,
        *,
        timeout_s: float,
        lost_after_s: float,
        signals: OperatorSignals,
        say: Callable[[str], None],
        is_over: Callable[[], Bye | None] = lambda: None,
    ) -> None:
        """`is_over` tells whether the run has ended meanwhile, for a member that finds no leader any more."""
        self._endpoint = endpoint
        self._hello = hello
        self._start = start
        self._timeout_s = timeout_s
        self._lost_after_s = lost_after_s
        self._signals = signals
        self._say = say
        self._is_over = is_over
        self._index = 0
        self._root = Path()
        self._inbox: Inbox = queue.SimpleQueue()

    def run(self) -> Bye:
        """Follows the leader until it says goodbye; Interrupted where the operator leaves."""
        has_joined = False
        while True:
            found = self._join(has_joined)
            if isinstance(found, Bye):
                return found
            has_joined = True
            try:
                bye = _Part(self, found).follow()
            finally:
                found.close()
            if bye is not None:
                return bye

    def _join(self, is_again: bool) -> Channel | Bye:
        """Connects, is welcomed, and has seen that the run directory is the leader's; RendezvousError after the time."""
        deadline, said_at, tries, trouble = time.monotonic() + self._timeout_s, 0.0, 0, ""
        while True:
            over = self._is_over()
            if over is not None:
                return over
            try:
                return self._knock(is_again)
            except (OSError, _TryAgain) as error:
                trouble = str(getattr(error, "strerror", None) or error)
            now = time.monotonic()
            if now >= deadline:
                what = f"no leader answered at {self._endpoint} within {self._timeout_s:g} s: {trouble}"
                do = "start the same command on the leading host; check its address, the port and the firewall"
                raise RendezvousError(what, f"--rdzv {self._endpoint}, on {self._hello.host}", do)
            if now - said_at >= _SAY_EVERY_S:
                self._say(f"waiting for the leader at {self._endpoint}, {deadline - now:.0f} s more ({trouble})")
                said_at = now
            self._sleep(_AGAIN_S[min(tries, len(_AGAIN_S) - 1)])
            tries += 1

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._signals.asked is not None:
                raise Interrupted(f"interrupted while waiting for the leader at {self._endpoint}")
            time.sleep(_POLL_S)

    def _knock(self, is_again: bool) -> Channel:
        addresses = resolve(self._endpoint)
        connection = socket.create_connection((addresses[0], self._endpoint.port), timeout=_CONNECT_S)
        self._inbox = queue.SimpleQueue()
        channel = Channel(connection, self._inbox)
        try:
            channel.send(self._hello)
            self._settle(channel, is_again)
        except BaseException:
            channel.close()
            raise
        return channel

    def _settle(self, channel: Channel, is_again: bool) -> None:
        where = f"--rdzv {self._endpoint}"
        do = "choose another port, the same on every host, or end what listens there"
        answer = self._hear(_ANSWER_S)
        if isinstance(answer, Refused):
            error = error_from_record(answer.error)
            if answer.is_final:
                raise error
            raise _TryAgain(error.problems[0].what)
        if isinstance(answer, Gone) and not answer.is_foreign:
            raise _TryAgain(answer.why)
        if not isinstance(answer, Welcome):
            if is_again:
                raise _TryAgain("nothing that listens there answers as a leader of Paceline does")
            what = f"another program listens at {self._endpoint}: it does not answer as a leader of Paceline does"
            raise RendezvousError(what, where, do)
        self._index = answer.index
        self._root = self._find_root(answer)
        channel.send(Ready())
        self._say(f"joined the leader at {self._endpoint} as host {answer.index}; run {self._root}")

    def _find_root(self, answer: Welcome) -> Path:
        """The run directory as this host sees it: where the leader has it, or where this host's own words lead."""
        candidates = list(dict.fromkeys([answer.root, self._hello.root]))
        deadline = time.monotonic() + _NONCE_S
        while time.monotonic() < deadline:
            for text in candidates:
                if read_nonce(Path(text)) == answer.nonce:
                    return Path(text)
            self._sleep(0.2)
        what = f"{self._hello.host} does not see the leader's run directory ({answer.root})"
        do = "give --out a directory on a file system that all hosts share, at the same path"
        raise RendezvousError(what, " and ".join(candidates), do)

    def _hear(self, seconds: float) -> Message | Gone | None:
        """The next message that is no sign of life alone; None: there was none in that time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(queue.Empty):
                _, message = self._inbox.get(timeout=_POLL_S)
                if type(message).__name__ != "Beat":
                    return message
            if self._signals.asked is not None:
                raise Interrupted(f"interrupted while talking to {self._endpoint}")
        return None


class _Part:
    """What a member does while it is connected."""

    def __init__(self, member: Member, channel: Channel) -> None:
        self._member = member
        self._channel = channel
        self._share: Share | None = None
        self._leaving_since: float | None = None

    def follow(self) -> Bye | None:
        """Until the run is over (the Bye), or the leader is lost (None); no rank is left in either case."""
        try:
            return self._follow()
        finally:
            if self._share is not None:
                self._share.end(is_hasty=True)

    def _follow(self) -> Bye | None:
        member, looked = self._member, time.monotonic()
        while True:
            message: Message | Gone | None = None
            with contextlib.suppress(queue.Empty):
                _, message = member._inbox.get(timeout=_POLL_S)
            now = time.monotonic()
            if now - looked > _SLEPT_S:
                self._channel.forgive()
            looked = now
            if isinstance(message, Bye):
                return message
            if isinstance(message, Gone):
                self._lose(message.why)
                return None
            if message is None and self._channel.silent_s > member._lost_after_s:
                self._lose(f"nothing was heard of it for {member._lost_after_s:g} s")
                return None
            if isinstance(message, Notice):
                member._say(message.text)
            elif isinstance(message, Begin):
                self._begin(message)
            elif isinstance(message, End) and self._share is not None and self._share.begin.attempt == message.attempt:
                member._say(f"ending attempt {message.attempt}: {message.why}")
                self._report(is_hasty=True)
            self._look()
            self._obey()

    def _begin(self, begin: Begin) -> None:
        member = self._member
        last = begin.first_rank + member._hello.nproc - 1
        ranks = f"rank {last}" if member._hello.nproc == 1 else f"ranks {begin.first_rank} to {last}"
        size = f"{begin.nnodes} host{'' if begin.nnodes == 1 else 's'}, {begin.world_size} ranks"
        member._say(f"attempt {begin.attempt}: {ranks} here, of {size}")
        self._share = member._start(begin, member._index, member._root)

    def _look(self) -> None:
        share = self._share
        if share is not None:
            share.check()
            if share.poll() is not None or share.is_overdue:
                self._report()

    def _report(self, *, is_hasty: bool = False) -> None:
        assert self._share is not None
        report = self._share.end(is_hasty=is_hasty)
        if report.left:
            self._member._say(f"warning: {report.left}")
        self._channel.send(report)
        self._share = None

    def _obey(self) -> None:
        """The member's own operator: the first signal asks to leave, the second leaves at once."""
        signals = self._member._signals
        if signals.asked is None:
            return
        now = time.monotonic()
        if self._leaving_since is None:
            self._leaving_since = now
            self._channel.send(Leave(WORDS[signals.asked]))
            self._member._say(f"{WORDS[signals.asked]}: leaving the run at the next step; Ctrl-C again leaves at once")
        if signals.wants_kill or now - self._leaving_since > _LEAVE_S:
            raise Interrupted("left the run; its leader goes on without this host, if it may")

    def _lose(self, why: str) -> None:
        had_ranks = self._share is not None
        self._member._say(
            f"the leader was lost: {why}; {'ending the ranks of this host, then ' if had_ranks else ''}looking for it again"
        )


class _TryAgain(Exception):
    """Not now, perhaps later."""
