from __future__ import annotations

import pytest
import torch

from paceline.engine import build
from paceline.engine.marks import MarkedTimer, Marks, NvtxMarks, marked
from paceline.engine.timing import StepTimer
from tests.engine.conftest import Regression


class Written(Marks):
    def __init__(self) -> None:
        self.text = ""

    def push(self, name: str) -> None:
        self.text += f"[{name}"

    def pop(self) -> None:
        self.text += "]"


def test_phases_lie_inside_their_step_and_the_timer_hears_the_same():
    timer, first, second = StepTimer(), Written(), Written()
    marked = MarkedTimer(timer, [first, second])
    timer.resume()
    for step in (1, 2):
        marked.begin_step(step)
        for phase in ("data", "forward", "backward", "data", "forward", "backward", "optimizer"):
            marked.enter(phase)
        marked.end_step()
    micro = "[data][forward][backward]"
    assert first.text == second.text == "".join(f"[step {n}{micro}{micro}[optimizer]]" for n in (1, 2))
    closed = timer.close_window()
    assert closed is not None
    window = closed.read()
    assert window.steps == 2
    assert all(value > 0 for value in window.phases.values())


def test_what_lies_between_steps_is_marked_and_an_error_closes_it():
    first, second = Written(), Written()
    with pytest.raises(KeyError), marked([first, second], "evaluate validation"):
        raise KeyError
    assert first.text == second.text == "[evaluate validation]"


def test_a_run_marks_steps_evaluations_and_checkpoints(make_context, monkeypatch):
    """By the names of a profile, which are told what NVTX is told, on whatever device."""
    texts: list[str] = []
    monkeypatch.setattr("paceline.engine.profile.ProfileMarks.push", lambda self, name: texts.append(f"[{name}"))
    monkeypatch.setattr("paceline.engine.profile.ProfileMarks.pop", lambda self: texts.append("]"))
    sections = {
        "train": {"max_steps": 2, "global_batch": 4, "accumulate": 2},
        "telemetry": {"profile": {"start_step": 2, "num_steps": 1}},
    }
    trainer = build.build_trainer(make_context(sections), Regression())
    trainer.run()
    trainer.close()
    micro = "[data][forward][backward]"
    steps = "".join(f"[step {n}{micro}{micro}[optimizer]]" for n in (1, 2))
    told = "".join(texts)
    assert told == f"[checkpoint]{steps}[evaluate validation][checkpoint]", "the first finds nothing to save"


def test_nvtx_hears_what_is_marked(monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", told.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: told.append("pop"))
    marked_timer = MarkedTimer(StepTimer(), [NvtxMarks()])
    marked_timer.begin_step(3)
    marked_timer.enter("forward")
    marked_timer.enter("backward")
    marked_timer.end_step()
    assert told == ["step 3", "forward", "pop", "backward", "pop", "pop"]
