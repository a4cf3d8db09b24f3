from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from paceline.launch.progress import Progress, _Pace, build_console
from paceline.telemetry.events import EventLog
from paceline.telemetry.layout import RunLayout
from paceline.telemetry.pulse import PulseWriter
from paceline.telemetry.tables import METRICS_COLUMNS, Table


class Fixture:
    """A run directory with one living attempt, and what a person sees of it."""

    def __init__(self, root: Path, *, terminal: bool) -> None:
        self.layout = RunLayout(root)
        self.pulses = root / "pulses"
        self.pulses.mkdir()
        self.events = EventLog(self.layout.events, "rank 0", 2)
        self.metrics = Table(self.layout.metrics, METRICS_COLUMNS)
        self.pulse = PulseWriter(self.pulses, rank=0, attempt=2)
        self.output = io.StringIO()
        console = Console(file=self.output, force_terminal=terminal, width=150, highlight=False)
        self.progress = Progress(self.layout, 2, console, self.pulses, plain_every_s=0)

    def take(self) -> str:
        text = self.output.getvalue()
        self.output.seek(0)
        self.output.truncate()
        return text

    def plan(self) -> None:
        self.events.write("plan", world_size=2, total_steps=400, steps_per_epoch=100, total_samples=51200, start_step=0)


def test_plain_lines(tmp_path: Path) -> None:
    seen = Fixture(tmp_path, terminal=False)
    seen.progress.poll()
    assert seen.take() == ""
    seen.plan()
    seen.progress.poll()
    assert seen.take() == "400 steps (4 epochs of 100), 51,200 samples, on 2 ranks\n"
    seen.pulse.beat(12, "forward")
    seen.metrics.write({"attempt": 1, "step": 399, "loss": 9.9, "samples_per_s": 1.0})
    seen.metrics.write({"attempt": 2, "step": 10, "loss": 3.21987, "samples_per_s": 15360.0})
    seen.progress.poll()
    assert seen.take() == "step 12/400  loss 3.22  15,360 samples/s\n"
    seen.progress.poll()
    assert seen.take() == ""  # the same step is not said twice
    seen.pulse.beat(100, "evaluate")
    seen.progress.poll()
    assert seen.take() == "step 100/400  loss 3.22  15,360 samples/s  evaluating\n"
    seen.progress.close()


def test_compilation_is_seen_while_it_lasts_and_afterwards(tmp_path: Path) -> None:
    seen = Fixture(tmp_path, terminal=True)
    seen.plan()
    seen.pulse.beat(0, "compile")
    seen.progress.poll()
    assert "compiling" in seen.take()
    seen.events.write("compile", step=0, seconds=27.94, parts=3)
    seen.pulse.beat(1, "forward")
    seen.progress.poll()
    assert "step 0  compiled in 27.9 s" in seen.take()
    seen.progress.poll()
    assert "compiling" not in seen.take()
    seen.progress.close()


def test_time_left_from_the_pace_since_the_first_step() -> None:
    pace = _Pace()
    assert pace.seconds_left(100) is None
    pace.see(0, 50.0)
    pace.see(1, 100.0)
    assert pace.seconds_left(100) is None
    pace.see(1, 105.0)  # still the same step
    pace.see(11, 120.0)
    assert pace.seconds_left(100) == 200.0
    assert pace.seconds_left(-1) == 0.0


def test_what_happens_is_said_once_and_only_of_this_attempt(tmp_path: Path) -> None:
    seen = Fixture(tmp_path, terminal=False)
    EventLog(seen.layout.events, "rank 0", 1).write("warning", what="an old one")
    seen.events.write("warning", what="a step was left out", where="step 7")
    seen.events.write("note", what="parallel.compression has no effect here", why="one rank")
    seen.events.choice("precision.mode", "auto", "fp32", "no GPU")
    seen.events.choice("parallel.bucket_mb", 25, 25, "as configured")
    seen.events.write("evaluation", split="validation", step=100, epoch=0, metrics={"ndcg_10": 0.123456, "hr_10": 0.25})
    seen.progress.poll()
    assert seen.take().splitlines() == [
        "warning: a step was left out; step 7",
        "note: parallel.compression has no effect here; one rank",
        "precision.mode: auto → fp32 (no GPU)",
        "step 100  validation: ndcg_10 0.1235  hr_10 0.25",
    ]
    seen.progress.poll()
    assert seen.take() == ""


def test_where_it_goes_on_and_what_is_saved(tmp_path: Path) -> None:
    seen = Fixture(tmp_path, terminal=False)
    seen.events.write("restart", why="rank 1 was killed", restart=1, of=3)
    place = tmp_path / "checkpoints" / "step_00001000"
    broken = ["step_00001100: the checkpoint is damaged: state.json is missing"]
    seen.events.write("resume", step=1000, checkpoint=str(place), passed_over=broken, world_size=2, saved_world_size=2)
    seen.events.write("resume", step=5, checkpoint="/elsewhere/step_00000005", passed_over=[], why="other ranks")
    seen.events.write("resume", step=0, checkpoint="/elsewhere/export", what="weights only", passed_over=[])
    size = {"bytes": 3 << 20, "seconds": 0.25, "stall_ms": 1.0, "shards": 2}
    seen.events.write("checkpoint", step=1200, name="step_00001200", is_best=True, **size)
    seen.events.write("checkpoint", step=1300, name="step_00001300", is_best=False, **size)
    seen.progress.poll()
    assert seen.take().splitlines() == [
        "restart 1 of 3: rank 1 was killed",
        f"passed over {broken[0]}",
        "goes on from step 1,000 (checkpoints/step_00001000)",
        "goes on from step 5 (/elsewhere/step_00000005); other ranks",
        "begins with the weights of /elsewhere/export",
        "step 1,200  checkpoint: 3.0 MiB in 0.2 s, the best so far",
        "step 1,300  checkpoint: 3.0 MiB in 0.2 s",
    ]
    seen.progress.close()


def test_a_live_line_on_a_terminal(tmp_path: Path) -> None:
    seen = Fixture(tmp_path, terminal=True)
    seen.progress.poll()
    assert "starting the workers" in seen.take()
    seen.plan()
    seen.pulse.beat(40, "backward")
    seen.metrics.write({"attempt": 2, "step": 40, "loss": 2.5, "samples_per_s": 900.0})
    seen.progress.poll()
    text = seen.take()
    assert "51,200 samples" in text
    assert "step 40/400" in text
    assert "loss 2.5" in text
    seen.progress.close()
    assert seen.progress.step == 40


def test_a_reader_that_has_gone_does_not_end_the_training(tmp_path: Path) -> None:
    seen = Fixture(tmp_path, terminal=False)

    def broken(_: str) -> int:
        raise BrokenPipeError

    seen.output.write = broken  # type: ignore[method-assign]
    seen.plan()
    seen.progress.poll()
    seen.progress.close()


def test_tables_have_room_where_there_is_no_terminal() -> None:
    assert build_console().width >= 80


def test_findings_and_incidents_are_lines_and_what_was_done_about_them(tmp_path: Path) -> None:
    seen = Fixture(tmp_path, terminal=False)
    straggler = {"kind": "straggler", "what": "rank 1 makes every step 20 % longer", "severity": "warning"}
    seen.events.write("finding", finding=straggler, incident=None)
    stall = {"kind": "dead_rank", "what": "rank 1 has gone", "severity": "critical"}
    place = {"incident": "0001-dead_rank-rank1", "place": "incidents/0001-dead_rank-rank1", "policy": "halt"}
    seen.events.write("incident", finding=stall, action="none", **place)
    seen.events.write("incident", finding=stall, action="killed", **place)
    seen.progress.poll()
    assert seen.take().splitlines() == [
        "straggler: rank 1 makes every step 20 % longer",
        "dead rank: rank 1 has gone; see incidents/0001-dead_rank-rank1/report.md",
        "supervisor: killed the ranks (incidents/0001-dead_rank-rank1)",
    ]
    seen.progress.close()
