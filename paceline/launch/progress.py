"""What a person sees of a running attempt: a live line on a terminal, plain lines elsewhere, and a line for everything worth saying.

    progress = Progress(layout, attempt=1, console=console)
    while running: progress.poll()
    progress.close()

Reads the run directory (each file piece by piece) and the pulse of rank 0; knows no process.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paceline.launch.duration import show_duration
from paceline.telemetry.amount import show_amount
from paceline.telemetry.follow import Follower
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import read_pulse

_PLAIN_EVERY_S = 5.0
_STEPPING = ("data", "forward", "backward", "optimizer", "log", "step")
_PHASE_WORDS = {
    "start": "starting",
    "compile": "compiling",
    "evaluate": "evaluating",
    "check": "comparing parameters",
    "end": "ending",
}
_MIB = 1 << 20


def build_console() -> Console:
    """A console on standard output; wide enough for a table where it is no terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


@contextlib.contextmanager
def _whoever_reads() -> Iterator[None]:
    """A terminal that closed, or a pipe whose reader has gone, must not end the training (rich exits on a broken pipe)."""
    with contextlib.suppress(OSError, SystemExit):
        yield


class Progress:
    """Shows one attempt; call `poll` several times a second, from one thread."""

    def __init__(
        self,
        layout: RunLayout,
        attempt: int,
        console: Console,
        pulses: Path,
        *,
        plain_every_s: float = _PLAIN_EVERY_S,
    ) -> None:
        self.step: int | None = None
        """the last step the pulse of rank 0 showed"""
        self._root = layout.root
        self._attempt = attempt
        self._console = console
        self._pulses = pulses
        self._events = Follower(layout.events)
        self._metrics = Follower(layout.metrics)
        self._plan: Mapping[str, Any] = {}
        self._row: Mapping[str, Any] = {}
        self._phase = "start"
        self._pace = _Pace()
        self._plain_every_s = plain_every_s
        self._said = time.monotonic()
        self._said_step: int | None = None
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def poll(self) -> None:
        """Reads what is new, says what is worth a line, and refreshes the live line."""
        self._read()
        if self._live is not None:
            with _whoever_reads():
                self._live.update(self._live_line(), refresh=True)
        elif time.monotonic() - self._said >= self._plain_every_s and self.step and self.step != self._said_step:
            self._say_step()

    def say(self, text: str, style: str = "") -> None:
        """A line of its own, above the live one."""
        with _whoever_reads():
            self._console.print(Text(text, style=style), soft_wrap=True)

    def close(self) -> None:
        """Says what is still unsaid and takes the live line away."""
        self._read()
        if self._live is not None:
            with _whoever_reads():
                self._live.stop()
            self._live = None

    def _read(self) -> None:
        for event in self._events.records():
            if event.get("attempt") == self._attempt:
                self._on_event(event)
        rows = [row for row in self._metrics.rows() if row.get("attempt") == self._attempt]
        if rows:
            self._row = rows[-1]
        pulse = read_pulse(self._pulses, 0)
        if pulse is not None and pulse.attempt == self._attempt:
            self.step, self._phase = pulse.step, pulse.phase
            self._pace.see(pulse.step, time.monotonic())

    def _on_event(self, event: Mapping[str, Any]) -> None:
        kind = event.get("kind")
        if kind == "plan":
            self._plan = event
            self.say(describe_plan(event))
        elif kind == "choice" and event.get("requested") != event.get("effective"):
            self.say(f"{event['about']}: {event['requested']} → {event['effective']} ({event['reason']})", "dim")
        elif kind == "resume":
            self._on_resume(event)
        elif kind == "restart":
            self.say(f"restart {event['restart']} of {event['of']}: {event['why']}", "yellow")
        elif kind in ("incident", "finding"):
            self._on_finding(event)
        elif kind == "evaluation":
            self.say(self._describe_evaluation(event), "cyan")
        elif kind == "compile":
            self.say(f"step {event['step']:,}  compiled in {event['seconds']:.1f} s", "dim")
        elif kind == "profile":
            self.say(f"steps {event['first_step']:,} to {event['last_step']:,} profiled: {', '.join(event['files'])}")
        elif kind == "checkpoint":
            best = ", the best so far" if event.get("is_best") else ""
            size = f"{event['bytes'] / _MIB:,.1f} MiB in {event['seconds']:.1f} s"
            self.say(f"step {event['step']:,}  checkpoint: {size}{best}", "dim")
        elif kind in ("warning", "note"):
            words = [str(event[name]) for name in ("what", "where", "why", "reason", "do") if event.get(name)]
            words += event.get("changed", ())
            self.say(f"{kind}: " + "; ".join(words), "yellow" if kind == "warning" else "dim")

    def _on_resume(self, event: Mapping[str, Any]) -> None:
        for passed_over in event.get("passed_over", ()):
            self.say(f"passed over {passed_over}", "yellow")
        place = Path(event["checkpoint"])
        where = place.relative_to(self._root) if place.is_relative_to(self._root) else place
        if not event["step"]:
            self.say(f"begins with the weights of {where}")
            return
        why = f"; {event['why']}" if event.get("why") else ""
        self.say(f"goes on from step {event['step']:,} ({where}){why}")

    def _on_finding(self, event: Mapping[str, Any]) -> None:
        finding, place, action = event["finding"], event.get("place"), event.get("action")
        if action not in (None, "none"):  # the same incident again, now that something was done
            words = {"asked": "asked all ranks to stop", "killed": "killed the ranks", "restarted": "killed the ranks"}
            self.say(f"supervisor: {words.get(action, action)} ({place})", "yellow")
            return
        style = "red" if finding.get("severity") == "critical" else "yellow"
        where = f"; see {place}/report.md" if place else ""
        self.say(f"{finding['kind'].replace('_', ' ')}: {finding['what']}{where}", style)

    def _describe_evaluation(self, event: Mapping[str, Any]) -> str:
        metrics = "  ".join(f"{name} {_number(value)}" for name, value in event["metrics"].items())
        return f"step {event['step']:,}  {event['split']}: {metrics}"

    @property
    def _total(self) -> int | None:
        return self._plan.get("total_steps")

    def _words(self) -> list[str]:
        """Loss, rate and time left, as far as they are known."""
        words = []
        if self._row:
            words.append(f"loss {_number(self._row.get('loss'))}")
            if self._row.get("samples_per_s") is not None:
                words.append(f"{show_amount(self._row['samples_per_s'])} samples/s")
        if self._total is not None and self.step is not None:
            left = self._pace.seconds_left(self._total - self.step)
            if left is not None and left >= 1 and self._phase != "end":
                words.append(f"{show_duration(left)} left")
        if self._phase not in _STEPPING and (self.step or self._phase == "compile"):
            words.append(_PHASE_WORDS.get(self._phase, self._phase))
        return words

    def _live_line(self) -> Table | Text:
        if self.step is None or self._total is None:
            return Text(f"starting the workers … {show_duration(time.monotonic() - self._pace.created)}", style="dim")
        grid = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self._total, completed=self.step, width=24)
        grid.add_row(Text(f"step {self.step:,}/{self._total:,}"), bar, *(Text(word) for word in self._words()))
        return grid

    def _say_step(self) -> None:
        self._said, self._said_step = time.monotonic(), self.step
        total = f"/{self._total:,}" if self._total is not None else ""
        self.say("  ".join([f"step {self.step:,}{total}", *self._words()]))


class _Pace:
    """Steps over wall time, evaluations included, from the first step that was seen."""

    def __init__(self) -> None:
        self.created = time.monotonic()
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None

    def see(self, step: int, now: float) -> None:
        if step < 1 or (self._last is not None and step == self._last[0]):
            return
        self._last = (step, now)
        self._first = self._first or self._last

    def seconds_left(self, steps: int) -> float | None:
        if self._first is None or self._last is None or self._last[0] == self._first[0]:
            return None
        return max(0, steps) * (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])


def describe_plan(plan: Mapping[str, Any]) -> str:
    """What will be trained, in one line."""
    ranks = plan["world_size"]
    per_epoch, total = plan["steps_per_epoch"], plan["total_steps"]
    if per_epoch is None:  # a foreign script
        return "a script of its own, " + (f"ended after step {total:,}" if total is not None else "until it ends")
    return (
        f"{total:,} steps ({total / per_epoch:.3g} epochs of {per_epoch:,}), "
        f"{plan['total_samples']:,} samples, on {ranks} rank{'' if ranks == 1 else 's'}"
    )


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
