"""Whose turn it is: the groups of warps of one simulated program, one of which runs at a time, and the copies that are under way.

    turns = Turns(seed=3)
    turns.run([load, compute, store])        # each a function without arguments; ends when all have ended

Which one goes on is drawn at every step that others may see, and when copies arrive: in some programs at once, in others as late as they
may, when nobody can go on without one. What is right by luck alone goes wrong for some seed. Where nobody can go on at all, that is an error
that says who waits for what.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

IsReady = Callable[[], bool]


class Stuck(AssertionError):
    """Everybody waits."""


class _Ended(BaseException):
    """Another one failed: this one is not needed any more."""


class _Runner(threading.Thread):
    def __init__(self, turns: Turns, name: str, call: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.go = threading.Semaphore(0)
        self.is_ready: IsReady = lambda: True
        self.waits_for = ""
        self.is_done = False
        self._turns, self._call = turns, call

    def run(self) -> None:
        self.go.acquire()
        try:
            if self._turns.error is None:
                self._call()
        except _Ended:
            pass
        except BaseException as error:
            self._turns.error = self._turns.error or error
        self.is_done = True
        self._turns.hand_on()


class Turns:
    """Of one program."""

    def __init__(self, seed: int) -> None:
        self.error: BaseException | None = None
        self.arriving: list[Callable[[], None]] = []
        """copies under way; called, one arrives"""
        self._random = random.Random(seed)
        self._copies_haste, self._switching = self._random.choice([0.0, 0.2, 0.9]), self._random.choice([0.1, 0.5, 0.9])
        self._runners: list[_Runner] = []
        self._all_done = threading.Event()

    @property
    def name(self) -> str:
        """Of the group whose turn it is."""
        return threading.current_thread().name

    def run(self, calls: Sequence[Callable[[], None]]) -> None:
        names = [getattr(call, "__name__", str(i)) for i, call in enumerate(calls)]
        self._runners = [_Runner(self, name, call) for name, call in zip(names, calls, strict=True)]
        for runner in self._runners:
            runner.start()
        self.hand_on()
        self._all_done.wait()
        for runner in self._runners:
            runner.join()
        if self.error is not None:
            raise self.error
        assert not self.arriving, "a program ended before its last copies had arrived"

    def step(self) -> None:
        """Something that others may see was done: perhaps they go on first."""
        if self._runners and self._random.random() < self._switching:
            self.wait_until(lambda: True, "")

    def wait_until(self, is_ready: IsReady, waits_for: str) -> None:
        if not self._runners:
            self._land_until(is_ready, waits_for)
            return
        me = threading.current_thread()
        assert isinstance(me, _Runner)
        me.is_ready, me.waits_for = is_ready, waits_for
        self.hand_on()
        me.go.acquire()
        if self.error is not None:
            raise _Ended

    def hand_on(self) -> None:
        """To one that can go on; where none can, copies arrive until one can."""
        alive = [runner for runner in self._runners if not runner.is_done]
        if not alive:
            self._all_done.set()
            return
        if self.error is None:
            while self.arriving and self._random.random() < self._copies_haste:
                self._land()
            while not any(runner.is_ready() for runner in alive) and self.arriving:
                self._land()
        ready = [runner for runner in alive if self.error is not None or runner.is_ready()]
        if not ready:
            waiting = "; ".join(f"{runner.name} waits for {runner.waits_for}" for runner in alive)
            self.error = Stuck(waiting)
            ready = alive
        self._random.choice(ready).go.release()

    def _land(self) -> None:
        self.arriving.pop(self._random.randrange(len(self.arriving)))()

    def _land_until(self, is_ready: IsReady, waits_for: str) -> None:
        while not is_ready():
            if not self.arriving:
                raise Stuck(f"the program waits for {waits_for}")
            self._land()
