"""The leading host's side: listens for members, calls them together, tells each its part of an attempt, and hears how it ended.

    with Leader(listener, roll, root, lost_after_s=10, say=print) as leader:
        leader.gather(signals)                         # RendezvousError: not enough hosts came in time
        leader.seat(); leader.begin(attempt=1, …)      -> Begin: the leader's own part
        while …: leader.poll(); leader.is_over         # a host was lost, or its ranks failed
        leader.finish("rank 1 died")                   -> Parts: everybody's report, and who was lost
        leader.dismiss(Bye("finished", "finished", 400, 0))

Each connection has threads of its own; all that is decided is decided in the caller's thread, by what came into one queue.
"""

from __future__ import annotations

import base64
import contextlib
import queue
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from paceline.errors import Interrupted, PacelineError, RendezvousError
from paceline.launch.hosts.channel import Channel, Gone, Inbox
from paceline.launch.hosts.endpoint import find_free_port
from paceline.launch.hosts.message import (
    Begin,
    Bye,
    End,
    Hello,
    Leave,
    Message,
    Notice,
    Pulses,
    Ready,
    Refused,
    Report,
    Visit,
    Welcome,
)
from paceline.launch.hosts.nonce import Nonce
from paceline.launch.hosts.parts import Lost, Parts
from paceline.launch.hosts.reception import Reception
from paceline.launch.hosts.roll import Roll, Seat
from paceline.launch.signals import OperatorSignals
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import store_remote_pulse
from paceline.telemetry.run_file import AttemptHost

_POLL_S = 0.05
_SAY_EVERY_S = 10.0
_REPORT_S = 75.0
"""at most, for the reports of hosts that still beat: as long as torchrun may take to end its ranks"""
_GRACE_S = 20.0
"""after our own ranks ended well: the others' are about to"""
_SETTLE_S = 3.0
"""after a rank failed somewhere: others fail because of it, and which one was the first is known when all agents have spoken"""
_SLEPT_S = 3.0
_REFUSED_S = 1.0


class Leader:
    """Enter it to listen; on leaving, everybody who is still connected is let go."""

    def __init__(
        self,
        listener: socket.socket,
        roll: Roll,
        layout: RunLayout,
        *,
        lost_after_s: float,
        can_resize: bool = True,
        say: Callable[[str], None],
    ) -> None:
        self.roll = roll
        self.say = say
        self.seats: list[Seat] = []
        """of the attempt that runs"""
        self._layout = layout
        self._lost_after_s = lost_after_s
        self._can_resize = can_resize
        self._inbox: Inbox = queue.SimpleQueue()
        self._reception = Reception(listener, self._inbox)
        self._channels: dict[int, Channel] = {}
        self._indices: dict[Channel, int] = {}
        self._attempt = 0
        self._pulses = Path()
        self._failed_at: float | None = None
        self._parts = Parts()
        self._nonce = Nonce(layout)
        self._looked = time.monotonic()

    def __enter__(self) -> Leader:
        self._nonce.write()
        self._reception.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, SystemExit):
            told = error if isinstance(error, PacelineError) else PacelineError(f"the leader failed: {error!r}")
            self.dismiss(Bye("failed", told.problems[0].what, None, told.exit_code, told.to_record()))
        self._reception.close()
        for channel in self._channels.values():
            channel.close()
        self._nonce.remove()

    @property
    def address(self) -> str:
        return self._reception.address

    @property
    def is_over(self) -> bool:
        """Whether the attempt has to be ended: a host of it was lost, or failed some moments ago."""
        has_failed = self._failed_at is not None and time.monotonic() - self._failed_at > _SETTLE_S
        return bool(self._parts.lost) or has_failed

    @property
    def wants_resize(self) -> str:
        """Why the attempt should be stopped for one of another size; empty: it should not."""
        return self.roll.wants_resize(self.seats) if self._can_resize else ""

    def gather(
        self,
        signals: OperatorSignals,
        *,
        is_first: bool = True,
        is_unwanted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Waits until there are enough hosts; RendezvousError when they did not come in time, Interrupted when nobody wants to wait."""
        self.seats, self._parts = [], Parts()
        for index in self.roll.leaving:
            self._channels[index].send(Bye("stopped", "left", None, Interrupted.exit_code))
        self.roll.call(time.monotonic(), is_first=is_first)
        said, said_at = "", 0.0
        while True:
            self.poll()
            decision = self.roll.decide(time.monotonic())
            line = self.roll.describe()
            if decision == "begin" and said == "" and not is_first:
                return
            if line != said or time.monotonic() - said_at >= _SAY_EVERY_S:
                self._tell_all(line)
                said, said_at = line, time.monotonic()
            if decision == "begin":
                return
            if decision == "late":
                do = "start the same command on the missing hosts, or raise launch.rdzv_timeout_s"
                raise RendezvousError(f"not enough hosts came in time: {line}", self._reception.place, do)
            if signals.asked is not None or is_unwanted():
                raise Interrupted(f"interrupted while waiting for hosts: {line}")
            time.sleep(_POLL_S)

    def begin(self, attempt: int, run_id: str, pulses: Path, rendezvous_id: str, debug: bool) -> Begin:
        """Tells every member its part of the attempt; returns the leader's own. Others' pulses are kept beside those in `pulses`."""
        self._pulses = pulses
        self._parts, self._attempt, self._failed_at = Parts(), attempt, None
        port = find_free_port(self.address)
        parts = {}
        for seat in self.seats:
            parts[seat.index] = Begin(
                attempt,
                run_id,
                seat.node_rank,
                len(self.seats),
                seat.first_rank,
                self.world_size,
                self.address,
                port,
                rendezvous_id,
                seat.nproc,
                debug,
            )
            if seat.index:
                self._channels[seat.index].send(parts[seat.index])
        return parts[0]

    def seat(self) -> list[AttemptHost]:
        """Gives everybody who is here a place in the next attempt."""
        self.seats = self.roll.seat()
        return [AttemptHost(each.index, each.host, each.address, each.first_rank, each.nproc) for each in self.seats]

    def describe_seats(self) -> str:
        """`2 hosts: host a (10.9.0.1) with rank 0, …`"""
        return f"{len(self.seats)} host{'' if len(self.seats) == 1 else 's'}: {', '.join(map(str, self.seats))}"

    @property
    def world_size(self) -> int:
        return sum(seat.nproc for seat in self.seats)

    def poll(self) -> None:
        """Hears what came, and who has been silent for too long."""
        now = time.monotonic()
        if now - self._looked > _SLEPT_S:
            for channel in self._channels.values():
                channel.forgive()
        self._looked = now
        self._reception.poll()
        with contextlib.suppress(queue.Empty):
            while True:
                channel, message = self._inbox.get_nowait()
                self._hear(channel, message)
        for index, channel in list(self._channels.items()):
            if channel.silent_s > self._lost_after_s:
                self._lose(index, f"nothing was heard of it for {self._lost_after_s:g} s")

    def finish(self, why: str, *, is_well: bool, is_hasty: bool = False) -> Parts:
        """Ends the attempt on every host, and waits until each has reported or is lost; who is about to end by itself may do so."""
        grace = time.monotonic() + (0.0 if is_hasty else _GRACE_S if is_well else _SETTLE_S)
        limit = grace + _REPORT_S
        has_told = False
        while self._missing():
            now = time.monotonic()
            if not has_told and (now >= grace or self.is_over):
                has_told = True
                for index in self._missing():
                    self._channels[index].send(End(self._attempt, why))
            if now > limit:
                for index in self._missing():
                    self._lose(index, f"it did not say within {_REPORT_S:.0f} s that its ranks have ended")
            time.sleep(_POLL_S)
            self.poll()
        return self._parts

    def dismiss(self, bye: Bye) -> None:
        """Tells everybody that the run is over."""
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            channel.send(bye)
        self._reception.see_off(channels)

    def _missing(self) -> list[int]:
        """Whose report is still to come."""
        lost = {each.index for each in self._parts.lost}
        others = [seat.index for seat in self.seats if seat.index]
        return [index for index in others if index not in self._parts.reports and index not in lost]

    def _hear(self, channel: Channel, message: Message | Gone) -> None:
        index = self._indices.get(channel)
        if index is None or self._channels.get(index) is not channel:
            self._hear_stranger(channel, message)
        elif isinstance(message, Gone):
            self._lose(index, message.why)
        elif isinstance(message, Ready):
            self._take_in(index, message.nonce)
        elif isinstance(message, Report):
            if message.attempt == self._attempt:
                self._parts.reports[index] = message
                if message.agent_exit != 0 and self._failed_at is None:
                    self._failed_at = time.monotonic()
        elif isinstance(message, Pulses):
            self._keep(index, message)
        elif isinstance(message, Leave):
            self._let_go(index, message.why)

    def _keep(self, index: int, message: Pulses) -> None:
        """For our supervisor, which compares all ranks."""
        ranks = next((seat.ranks for seat in self.seats if seat.index == index), range(0))
        for rank in ranks:
            data = message.pulses.get(str(rank))
            if isinstance(data, str) and message.attempt == self._attempt:
                with contextlib.suppress(ValueError):
                    store_remote_pulse(self._pulses, rank, base64.b64decode(data))

    def _hear_stranger(self, channel: Channel, message: Message | Gone) -> None:
        if not self._reception.release(channel):
            return
        if isinstance(message, Visit):
            what = f"a training leads at {self._reception.place}, and no preflight"
            do = "check the hosts at another port (--rdzv), or when the training has ended"
            self._refuse(channel, RendezvousError(what, str(self._layout.root), do))
            return
        if not isinstance(message, Hello):
            channel.close()
            return
        refusal = self.roll.refuse(message)
        if refusal is not None:
            self.say(f"refused: {refusal[0].problems[0].what}")
            self._refuse(channel, *refusal)
            return
        entry = self.roll.admit(message)
        self._channels[entry.index], self._indices[channel] = channel, entry.index
        channel.send(Welcome(entry.index, str(self._layout.root), self._nonce.proof))

    def _refuse(self, channel: Channel, error: PacelineError, is_final: bool = True) -> None:
        channel.send(Refused(error.to_record(), is_final))
        self._reception.hold(channel, _REFUSED_S)

    def _take_in(self, index: int, nonce: str) -> None:
        """A host that has read what we wrote; also one that came while an attempt runs."""
        if nonce != self._nonce.word:
            self._lose(index, "it did not read the run directory")
            return
        self.roll.confirm(index)
        if not self.seats:
            return
        if self._can_resize:
            how = "the run stops at a step to take it in"
        else:
            how = "it waits for the next attempt: without checkpoints (checkpoint.enabled=false) a stop would lose everything"
        self.say(f"host {self.roll[index].name} has come; {how}")
        self._channels[index].send(Notice(f"the run is training; {how}"))

    def _let_go(self, index: int, why: str) -> None:
        self.say(f"host {self.roll[index].name} leaves: {why}")
        self.roll[index].is_leaving = True
        is_seated = index in {seat.index for seat in self.seats}
        if not is_seated or not self._can_resize:
            self._channels[index].send(Bye("stopped", "left", None, Interrupted.exit_code))

    def _lose(self, index: int, why: str) -> None:
        channel = self._channels.pop(index)
        channel.close()
        entry = self.roll[index]
        self.roll.drop(index)
        seat = next((seat for seat in self.seats if seat.index == index), None)
        if seat is not None and index not in self._parts.reports:
            self._parts.lost.append(Lost(index, str(seat), why))
        self.say(f"host {entry.name} {'has gone' if seat is None or entry.is_leaving else 'was lost'}: {why}")

    def _tell_all(self, line: str) -> None:
        self.say(line)
        for index, channel in list(self._channels.items()):
            if self.roll[index].is_ready:
                channel.send(Notice(line))
