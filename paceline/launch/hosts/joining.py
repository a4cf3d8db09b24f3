"""How a member gets to its leader: connects, says who it is, and sees that both mean the same run directory.

    Door(endpoint, hello, timeout_s=300, signals=signals, say=print).join()
    -> Joined(channel, inbox, index=1, root=Path("/shared/runs/a")), or RendezvousError: nobody there in time, refused, another program

Every wait has its limit and is told on the terminal.
"""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import Interrupted, RendezvousError, UsageError, error_from_record
from paceline.launch.hosts.address import resolve
from paceline.launch.hosts.channel import Channel, Gone, Inbox, hear
from paceline.launch.hosts.endpoint import Endpoint
from paceline.launch.hosts.message import Bye, Hello, Leave, Message, Ready, Refused, Welcome
from paceline.launch.hosts.nonce import prove, read_nonce
from paceline.launch.signals import OperatorSignals

_POLL_S = 0.05
_CONNECT_S = 3.0
_ANSWER_S = 10.0
_NONCE_S = 10.0
"""a network file system may show a new file late"""
_AGAIN_S = (0.2, 0.5, 1.0, 2.0)
_SAY_EVERY_S = 10.0


@dataclass(frozen=True)
class Joined:
    """A member's way to its leader."""

    channel: Channel
    inbox: Inbox
    index: int
    root: Path
    """the run directory as this host sees it"""


class _TryAgain(Exception):
    """Not now, perhaps later."""

    def __init__(self, why: str, do: str = "") -> None:
        """`do`: what helps, where it is another thing than a leader that is not there."""
        super().__init__(why)
        self.do = do


class Door:
    """Where a member knocks, the first time and whenever it has lost its leader."""

    def __init__(
        self,
        endpoint: Endpoint,
        hello: Hello,
        *,
        timeout_s: float,
        signals: OperatorSignals,
        say: Callable[[str], None],
        is_over: Callable[[], Bye | None] = lambda: None,
    ) -> None:
        """`is_over` tells whether the run has ended meanwhile: then there is no leader to wait for."""
        self._endpoint = endpoint
        self._hello = hello
        self._timeout_s = timeout_s
        self._signals = signals
        self._say = say
        self._is_over = is_over
        self._has_joined = False

    def join(self) -> Joined | Bye:
        """The leader, once it is there; RendezvousError when it is not in time, or does not want us."""
        deadline, said_at, tries, trouble = time.monotonic() + self._timeout_s, 0.0, 0, ""
        refused = ""
        while True:
            over = self._is_over()
            if over is not None:
                return over
            try:
                joined = self._knock()
                self._has_joined = True
                return joined
            except (OSError, _TryAgain) as error:
                trouble = str(getattr(error, "strerror", None) or error)
                refused = getattr(error, "do", "")
            now = time.monotonic()
            if now >= deadline:
                raise self._give_up(trouble, refused)
            if now - said_at >= _SAY_EVERY_S:
                whom = "a place with the leader" if refused else "the leader"
                self._say(f"waiting for {whom} at {self._endpoint}, {deadline - now:.0f} s more ({trouble})")
                said_at = now
            self._sleep(min(_AGAIN_S[min(tries, len(_AGAIN_S) - 1)], max(0.0, deadline - now)))
            tries += 1

    def _give_up(self, trouble: str, refused: str) -> RendezvousError:
        """`refused`: what helps where there is a leader, and it has no place for us."""
        where, within = f"--rdzv {self._endpoint}, on {self._hello.host}", f"{self._timeout_s:g}"
        if refused:
            what = f"the leader at {self._endpoint} took nobody in within {within} s: {trouble}"
            return RendezvousError(what, where, refused)
        what = f"no leader answered at {self._endpoint} within {within} s: {trouble}"
        do = "start the same command on the leading host; check its address, the port and the firewall"
        return RendezvousError(what, where, do)

    def _knock(self) -> Joined:
        try:
            address = resolve(self._endpoint.host, "launch.rdzv")[0]
        except UsageError as error:  # it could be resolved when the command was planned
            raise _TryAgain(error.problems[0].what) from error
        connection = socket.create_connection((address, self._endpoint.port), timeout=_CONNECT_S)
        inbox: Inbox = queue.SimpleQueue()
        channel = Channel(connection, inbox)
        try:
            channel.send(self._hello)
            welcome = self._read_answer(self._hear(inbox))
            root, nonce = self._find_root(channel, welcome)
            channel.send(Ready(nonce))
        except BaseException:
            channel.close()
            raise
        self._say(f"joined the leader at {self._endpoint} as host {welcome.index}; run {root}")
        return Joined(channel, inbox, welcome.index, root)

    def _read_answer(self, answer: Message | Gone | None) -> Welcome:
        if isinstance(answer, Welcome):
            return answer
        if isinstance(answer, Refused):
            error = error_from_record(answer.error)
            if answer.is_final:
                raise error
            raise _TryAgain(error.problems[0].what, error.problems[0].do)
        if isinstance(answer, Gone) and not answer.is_foreign:
            raise _TryAgain(answer.why)
        if self._has_joined:
            raise _TryAgain("what listens there does not answer as a leader of Paceline does")
        what = f"another program listens at {self._endpoint}: it does not answer as a leader of Paceline does"
        do = "choose another port, the same on every host, or end what listens there"
        raise RendezvousError(what, f"--rdzv {self._endpoint}", do)

    def _find_root(self, channel: Channel, welcome: Welcome) -> tuple[Path, str]:
        """Where the leader has it, or where this host's own words lead: wherever the leader's nonce is; and that."""
        candidates = list(dict.fromkeys([welcome.root, self._hello.root]))
        deadline = time.monotonic() + _NONCE_S
        while time.monotonic() < deadline:
            for text in candidates:
                nonce = read_nonce(Path(text))
                if prove(nonce) == welcome.proof:
                    return Path(text), nonce
            self._sleep(0.2)
        what = f"{self._hello.host} does not see the leader's run directory ({welcome.root})"
        channel.send(Leave(what))
        do = "give --out a directory on a file system that all hosts share, at the same path"
        raise RendezvousError(what, " and ".join(candidates), do)

    def _hear(self, inbox: Inbox) -> Message | Gone | None:
        """The leader's next word; None: there was none in time."""
        until = time.monotonic() + _ANSWER_S
        while time.monotonic() < until:
            message = hear(inbox, _POLL_S)
            if message is not None:
                return message
            self._check_wanted()
        return None

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._check_wanted()
            time.sleep(_POLL_S)

    def _check_wanted(self) -> None:
        if self._signals.asked is not None:
            raise Interrupted(f"interrupted while waiting for the leader at {self._endpoint}")
